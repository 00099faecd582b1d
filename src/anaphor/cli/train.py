"""`anaphor train TASK`: train one model, keep the best, score it."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.config import finite, from_yaml, look_up
from anaphor.errors import ConfigError
from anaphor.flags import parse
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.spec import BUDGETS
from anaphor.training.precedence import REPLACED, without_replaced
from anaphor.training.recipes import recipe_file
from anaphor.training.run_folder import RunFolder
from anaphor.training.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Handling:
    """What is done with a run, whatever it trains."""

    recipe: str | None = None
    """Settings that are known to work, by name; flags override them."""
    config: Path | None = None
    """A file with settings, as `spec.yaml` of a run; flags override it."""
    out: Path | None = None
    """Folder of the run; None means a new one under runs."""
    resume: bool = False
    """Go on with the run in that folder, exactly where it stopped and as it was begun; flags need not be repeated."""
    force: bool = False
    """Delete a run that is there, or go on with one that was begun otherwise."""
    no_test: bool = False
    """Leave the test split unread."""
    tensorboard: bool = False
    """Write events for TensorBoard into the run's folder."""
    dry_run: bool = False
    """Build everything, tell what would be trained, and stop."""
    json: bool = False
    """Print one JSON value; progress goes to stderr."""


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(LanguageRunSpec, Handling):
    """Train a language model. What is None is left to the model, the data or the optimizer."""


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(TranslationRunSpec, Handling):
    """Train a translation model. What is None is left to the model, the data or the optimizer."""


Options = LanguageOptions | TranslationOptions
TASKS: dict[str, tuple[type[Options], type[RunSpec]]] = {
    "lm": (LanguageOptions, LanguageRunSpec),
    "translate": (TranslationOptions, TranslationRunSpec),
}


def run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: anaphor train {'|'.join(TASKS)} [OPTIONS]\n\n`anaphor train lm --help` explains the options.")
        return 0
    if words[0].startswith("-"):
        raise ConfigError("the task is missing: " + " or ".join(f"`anaphor train {task} {words[0]}`" for task in TASKS))
    _, kind = look_up(TASKS, words[0], "task")
    options = read(words[0], words[1:])
    spec = kind(**{field.name: getattr(options, field.name) for field in dataclasses.fields(kind)})
    if options.resume and options.out is None:
        raise ConfigError("--resume needs --out: the folder of the run to go on with")
    out = options.out or Path("runs") / f"{spec.model}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not options.dry_run:
        # Before torch is loaded: a folder that is in use or cannot be written is refused at once.
        with RunFolder(out).lock():
            pass
    spec.reject_unused_flags(said_in(words))
    if options.dry_run:
        return tell(spec, out, options)

    from anaphor.cli.progress import Bar, Under
    from anaphor.progress import progress_listener
    from anaphor.training.run import execute

    with (
        Bar("training", "perplexity" if getattr(spec, "causal", True) else "exp(loss)") as bar,
        progress_listener(Under(bar)),
    ):
        result, code = execute(
            spec, out, bar, resume=options.resume, force=options.force, test=not options.no_test,
            tensorboard=options.tensorboard, warn=warn,
        )  # fmt: skip
    show(result, options)
    return code


def read(task: str, words: Sequence[str]) -> Options:
    """Flags over a file over the defaults."""
    kind, spec = TASKS[task]
    file = file_of(task, words)
    default = None if file is None else kind(**read_file(spec, file, words))
    return parse(kind, words, program=f"anaphor train {task}", default=default)


def file_of(task: str, words: Sequence[str]) -> Path | None:
    """Where the settings stand that flags are laid over: a recipe, a file, or the run to go on with."""
    recipe, file, out = (value_of(flag, words) for flag in ("--recipe", "--config", "--out"))
    if recipe is not None and file is not None:
        raise ConfigError(f"--recipe {recipe} and --config {file}: give one of them")
    if recipe is not None:
        return recipe_file(recipe, task)
    if file is not None:
        return Path(file)
    begun = RunFolder(Path(out)) if out is not None and "--resume" in words else None
    return begun.spec if begun is not None and begun.exists else None


def read_file(kind: type[RunSpec], path: Path, words: Sequence[str]) -> dict[str, Any]:
    """The settings of a file that leave room for the flags: of budgets, for one, a spec may have but one."""
    said: dict[str, Any] = {name: value_of(f"--{name}", words) for name in (*BUDGETS, *REPLACED) if name != "residual"}
    said = {name: value for name, value in said.items() if value != "None"}  # which is how one says that there is none
    if {"--residual", "--no-residual"} & set(words):
        said["residual"] = "--residual" in words
    return without_replaced(vars(from_yaml(kind, path)), said)


def said_in(words: Sequence[str]) -> set[str]:
    """The names of all flags that were typed."""
    return {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """What stands behind a flag, before the parser proper has seen it: the defaults depend on it."""
    for place, word in enumerate(words):
        if word == flag:
            if place + 1 == len(words):
                raise ConfigError(f"{flag} needs a value")
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def tell(spec: RunSpec, out: Path, options: Options) -> int:
    from anaphor.training.run import build_step, check_rules, kept_place, prepare

    check_rules(spec)
    made = prepare(spec, place=kept_place(RunFolder(out), spec) if options.resume else None)
    build_step(spec, made.model, made.task, made.device)  # it refuses what does not fit the model
    padding, left_out, notes = made.padding_share(), made.left_out(), made.notes()
    for line in notes:
        warn(line)
    facts = {
        "run": str(out),
        "parameters": made.model.count_parameters(),
        "vocabulary": made.model.head.out_features,
        "batches_per_epoch": len(made.task.batches(0)),
        **({} if padding is None else {"padding_share": round(padding, 4)}),
        **({"left_out": left_out} if left_out else {}),
        **({"notes": notes} if options.json else {}),
        "device": str(made.device),
    }
    print(json.dumps(facts) if options.json else "\n".join(f"{key}: {value}" for key, value in facts.items()))
    return 0


def warn(line: str) -> None:
    print(f"anaphor: {line}", file=sys.stderr)


def warn_of_unknown(unknown: int, tokens: int, what: str) -> None:
    """Tell that words are read as `<unk>`: whatever follows is not about them."""
    if unknown:
        from anaphor.data.tokenizer import UNKNOWN

        warn(f"the model does not know {unknown} of {tokens} tokens of the {what}: it reads {UNKNOWN}")


def told_overlap(found: dict[str, Any]) -> str:
    return f"{found['in_train']:,} of {found['test']:,} {found['unit']} of test stand in train as well"


def told_source_loss(loss: float) -> str:
    return f"whoever knows the grammar has perplexity {math.exp(loss):.2f} on this text"


def show(result: dict[str, Any], options: Options) -> None:
    if options.json:
        print(json.dumps(finite(result)))
        return
    if result["status"] == "stopped":
        print(f"stopped; go on with `anaphor train {options.task} --resume --out {result['run']}`")
        return
    from anaphor.metrics.perplexity import format_perplexity

    for split in ("valid", "test"):
        score: dict[str, Any] | None = result[split]
        if score is not None:
            told = format_perplexity(score["perplexity"])
            print(f"{split}: {told}, loss {score['loss']:.4f} ({score['signature']})")
            if "bleu" in score:
                print(f"  BLEU {score['bleu']:.2f} ({score['bleu_signature']})")
                print(f"  chrF {score['chrf']:.2f} ({score['chrf_signature']})")
            if "source_loss" in score:
                print(f"  {told_source_loss(score['source_loss'])}")
            if "overlap" in score:
                print(f"  {told_overlap(score['overlap'])}")
    if result["padding_share"] is not None:
        print(f"padding: {result['padding_share']:.1%} of all positions")
    if result.get("left_out"):  # runs from before it was counted have none
        print(f"left out: {result['left_out']:,} pairs that are too long")
    print(
        f"{result['parameters']:,} parameters, {result['tokens_per_second']:,.0f} tokens/s, {result['seconds']:.0f} s"
    )
    for figure in result["figures"]:
        print(f"figure: {figure}")
    if result["stopped_early"]:
        print(f"stopped early, after {result['steps']:,} steps: validation did not get better any more")
    if result["status"] == "interrupted":
        print(f"interrupted after step {result['steps']:,}; --resume --out {result['run']} goes on")
    print(f"run: {result['run']}")
