"""What one test sets for all of torch is gone before a fixture of the next module is made."""

import pytest
import torch


@pytest.fixture(scope="module", params=[0, 1])
def careless(request):
    """What the module finds, before it leaves torch in double precision as a careless fixture may."""
    found = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    return found


def test_a_module_starts_from_the_default_of_torch(careless):
    assert careless == torch.float32


def test_a_test_starts_in_double_precision(careless):
    assert torch.get_default_dtype() == torch.float64
