"""Every test starts from the same seed, in double precision, on one thread: two workers share two cores."""

import pytest
import torch
from hypothesis import settings

# A busy machine is no mistake of the code: what has a time limit says so itself.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _known_start():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    # Not "what it was before": a fixture shared by a module may have changed it before the first test began.
    torch.set_default_dtype(torch.float32)
