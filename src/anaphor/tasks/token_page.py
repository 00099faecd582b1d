"""What the live page shows of the models of a `TokenExperiment`: a look inside an example, or a given text."""

from __future__ import annotations

from anaphor.data.batches import IGNORE_INDEX
from anaphor.errors import ConfigError
from anaphor.inspect.parts import LookParts
from anaphor.tasks.lm.page import look_at_text
from anaphor.tasks.token_experiment import TokenExperiment


def look(
    experiment: TokenExperiment,
    *,
    text: str | None = None,
    example: int | None = None,
    length: int = 64,
    image: str | None = None,
) -> LookParts:
    """A text inside the model. `example` is the number of an example of validation."""
    if image is not None:
        raise ConfigError("the model reads no images: give a text")
    if text is None:
        assert example is not None, "one of them was given"
        text = read_example(experiment, example, length)
    return look_at_text(experiment, text)


def read_example(experiment: TokenExperiment, example: int, length: int) -> str:
    """The words of an example of validation, with the last answer."""
    examples = experiment.split("valid")
    if example >= len(examples.input_ids):
        raise ConfigError(f"example={example}: validation has the examples 0 to {len(examples.input_ids) - 1:,}")
    count = examples.input_ids.shape[1] if examples.lengths is None else int(examples.lengths[example])
    ids, last = examples.input_ids[example, 1:count].tolist(), int(examples.targets[example, count - 1])
    return experiment.tokenizer.decode([*ids, *([] if last == IGNORE_INDEX else [last])][:length])
