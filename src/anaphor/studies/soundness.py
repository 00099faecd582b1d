"""What every worker would refuse before it opens its data is refused once, before the first of them is started."""

from __future__ import annotations

from collections.abc import Sequence

from anaphor.config import look_up
from anaphor.data.vocab import TOKENIZERS
from anaphor.errors import ConfigError
from anaphor.models import PRESETS, SEQ2SEQ_PRESETS, BlockSpec, preset, seq2seq_preset
from anaphor.studies.axes import Axis
from anaphor.studies.spec import Setting, StudySpec
from anaphor.studies.units import BY_TOKEN, TEXT_SETTINGS, TOKEN_SETTINGS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.optim import OPTIMIZERS, check_layer_lr
from anaphor.training.run import check_rules
from anaphor.training.schedule import SCHEDULES
from anaphor.training.translation import disagreement_of

Run = LanguageRunSpec | TranslationRunSpec
BITS = "valid.bits_per_byte"
VOCABULARY = 100  # the data will tell; what fits together does not depend on it


def check_study(spec: StudySpec, settings: Sequence[Setting] | None) -> None:
    """Refuse settings that could not be run. Those of a search are not known yet: of them only names are checked."""
    if spec.searches:
        check_search(spec)
    for setting in [spec.middle()] if settings is None else settings:
        assert isinstance(setting.run, Run), "one of the tasks that can be studied"
        try:
            check_names(setting.run)
            check_metric(spec.metric, setting.run)
            if settings is not None:
                check_sight(spec.metric, setting.run, check_parts(setting.run))
        except ConfigError as error:
            raise spec.refusal(setting.parameters, error) from None


def check_search(spec: StudySpec) -> None:
    """Refuse axes along which the metric changes its meaning: a search would follow it to where it counts least."""
    for axis in spec.parameters:
        places = axis.settings if isinstance(axis, Axis) else [{axis.name: end} for end in (axis.low, axis.high)]
        names = {name for place in places for name in place}
        values = {name: {str(place.get(name, spec.base.get(name))) for place in places} for name in names}
        changed = {name for name in names if len(values[name]) > 1}
        along = f"study {spec.name!r}: method {spec.method} cannot go along {axis.name}"
        if changed & set(TEXT_SETTINGS):
            raise ConfigError(
                f"{along} by any metric, for it changes the text that is scored: give each text a study of its own"
            )
        if spec.metric.split(".")[1] in BY_TOKEN and changed & set(TOKEN_SETTINGS):
            raise ConfigError(
                f"{along} by metric={spec.metric}, for it changes what a token is: choose by valid.bits_per_byte"
            )


def check_names(run: Run) -> None:
    look_up(OPTIMIZERS, run.optimizer, "optimizer")
    look_up(SCHEDULES, run.schedule, "schedule")
    look_up(SEQ2SEQ_PRESETS if isinstance(run, TranslationRunSpec) else PRESETS, run.model, "model")
    look_up(TOKENIZERS, run.tokenizer, "tokenizer")


def check_metric(metric: str, run: Run) -> None:
    """Refuse what no run of this kind has, before it is trained for nothing."""
    if metric == BITS and isinstance(run, LanguageRunSpec) and run.batching == "stream" and run.protocol == "example":
        raise ConfigError(
            f"metric={metric} is not measured by protocol={run.protocol}, which leaves tokens out: choose by "
            f"valid.loss or valid.perplexity, or take protocol=complete"
        )


def check_sight(metric: str, run: Run, layers: Sequence[BlockSpec]) -> None:
    """The same of a model whose layers are known. Those of an encoder may see all of a source."""
    whole = isinstance(run, LanguageRunSpec) and any(layer.mixer.noncausal_reason is not None for layer in layers)
    if metric == BITS and whole:
        raise ConfigError(f"metric={metric} is for models that see no later tokens: choose by valid.perplexity")


def check_parts(run: Run) -> list[BlockSpec]:
    """Describe the parts of a run as the run itself would; gives the layers of its model."""
    check_rules(run)
    layers = check_model(run)
    check_layer_lr(run.layer_lr, len(layers))
    return layers


def check_model(run: Run) -> list[BlockSpec]:
    """The layers that the model would have."""
    if isinstance(run, LanguageRunSpec):
        return preset(run.model, vocabulary=VOCABULARY, **run.model_options()).blocks()
    model = seq2seq_preset(run.model, source_vocabulary=VOCABULARY, vocabulary=VOCABULARY, **run.model_options())
    disagreement_of(run, model)
    return model.blocks()
