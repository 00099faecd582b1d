"""A part of a user's own between the head and the predictions: its losses follow from what it predicts."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from anaphor.errors import ConfigError
from anaphor.models import HeadWrapper, LanguageModelSpec, build
from anaphor.models.cross_entropy import IGNORE_INDEX, full_cross_entropy
from anaphor.registry import HEADS, register_head

SIZES = {"vocabulary": 7, "width": 8, "layers": 1}


@dataclass(frozen=True, kw_only=True)
class Repetition:
    section: ClassVar[str] = "repetition"
    repetition: bool = False
    """Whether a token that was seen is likelier."""


class Repeater(HeadWrapper):
    """Adds a learned number to the logits of all tokens of the row so far."""

    def __init__(self, vocabulary):
        super().__init__()
        self.bonus, self.vocabulary = nn.Parameter(torch.tensor(0.5)), vocabulary

    def initial_state(self, rows):
        return (torch.zeros(rows, self.vocabulary), torch.zeros(rows, 0, self.vocabulary))

    def extend(self, state, hidden_states, tokens, span):
        one_hot = torch.nn.functional.one_hot(tokens, self.vocabulary).to(hidden_states)
        seen = (state[0][:, None] + one_hot.cumsum(1)).clamp(max=1)
        return seen[:, -1], seen

    def predict(self, logits, state):
        return logits + self.bonus * state[1][:, -logits.shape[1] :]

    def metadata(self):
        return {"repetition": "yes"}


@pytest.fixture(autouse=True)
def _repetition(monkeypatch):
    monkeypatch.setattr(HEADS, "_entries", dict(HEADS._entries))
    make = lambda settings, spec: Repeater(spec.vocabulary) if settings.repetition else None  # noqa: E731
    register_head("repetition", make, Repetition)


def test_losses_and_predictions_are_those_of_one_distribution():
    model = build("lstm", **SIZES, repetition=True)
    tokens = torch.randint(0, 7, (2, 9))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, -1] = IGNORE_INDEX
    logits, state = model(inputs)
    x, _ = model.compute_hidden_states(inputs)
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(model.token_losses(x, targets, state), expected)
    total, by_token = model.cross_entropy_by_token(x, targets, state)
    torch.testing.assert_close((total, by_token), (expected.sum(), expected))
    torch.testing.assert_close(model.cross_entropy(x, targets, state), expected.sum())
    torch.testing.assert_close(model.predict_next(x[:, -1], state), logits[:, -1])
    assert torch.autograd.grad(total, model.repetition.bonus)[0] != 0
    assert model.state_bytes(9) > build("lstm", **SIZES).state_bytes(9)


def test_the_state_goes_on_from_chunk_to_chunk():
    model, tokens = build("lstm", **SIZES, repetition=True), torch.randint(0, 7, (2, 9))
    whole, _ = model(tokens)
    first, state = model(tokens[:, :4])
    second, _ = model(tokens[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)


def test_without_it_the_model_is_the_plain_one():
    model, tokens = build("lstm", **SIZES, repetition=True), torch.randint(0, 7, (2, 9))
    assert model.head_metadata() == {"repetition": "yes"}
    with model.without_head_wrapper():
        x, state = model.compute_hidden_states(tokens)
        torch.testing.assert_close(model.cross_entropy(x, tokens, state), full_cross_entropy(x, model.head, tokens))
        assert model.head_metadata() == {"repetition": "off"}
        assert not [name for name in model.state_dict() if name.startswith("repetition")]
    assert "repetition.bonus" in model.state_dict()
    assert build("lstm", **SIZES).head_metadata() == {}


def test_two_parts_at_one_place_are_refused():
    with pytest.raises(
        ConfigError, match=r"a model has one head of an extra, but .* 'pointer' and 'repetition': use one"
    ):
        build("lstm", **SIZES, repetition=True, pointer_memory=5)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("layers", lambda settings, spec: HeadWrapper(), "head 'layers': a part of a model cannot have this name"),
        ("mine", lambda settings, spec: nn.Linear(2, 2), "head 'mine' is a Linear, not an anaphor.models.HeadWrapper"),
    ],
)
def test_what_cannot_be_a_part_of_a_model_is_refused(name, make, message):
    settings = dataclass(frozen=True)(
        type("Own", (), {"section": "own", "__annotations__": {"own": bool}, "own": False})
    )
    register_head(name, make, settings)
    with pytest.raises(ConfigError, match=message):
        LanguageModelSpec(**SIZES, mixers=("lstm",), extras=[settings(own=True)]).build()
