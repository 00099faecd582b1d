"""Rules of the house: only tasks know tasks, the words are those of the field."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anaphor.flags import flags_of
from anaphor.registry import TASKS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anaphor"
MODULES = sorted(SOURCE.rglob("*.py"))

# May name tasks, their specs and metrics: the registry, the package's own names, and the verbs of one task.
MAY_NAME_TASKS = {
    "registry.py",
    "__init__.py",
    *(f"cli/{verb}.py" for verb in ("translate", "bleu", "generate", "score")),
}
TASK_NAMES = {"lm", "translate"}
TASK_WORDS = re.compile(r"LanguageRunSpec|TranslationRunSpec|perplexity|bleu|chrf|bits_per_byte|bits per byte", re.I)


def relative(path):
    return path.relative_to(SOURCE).as_posix()


def docstrings(tree):
    bodies = [node.body for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)]
    statements = [statement for body in bodies for statement in body if isinstance(statement, ast.Expr)]
    return {id(statement.value) for statement in statements if isinstance(statement.value, ast.Constant)}


def names_of_tasks(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if node.value in TASK_NAMES or TASK_WORDS.search(node.value):
                yield f"line {node.lineno}: {node.value!r}"
        elif isinstance(node, ast.Name) and TASK_WORDS.search(node.id):
            yield f"line {node.lineno}: {node.id}"
        elif isinstance(node, ast.Attribute) and TASK_WORDS.search(node.attr):
            yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.ImportFrom) and re.search(r"tasks\.(lm|translate)", node.module or ""):
            yield f"line {node.lineno}: imports {node.module}"


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in MODULES
        if relative(path) not in MAY_NAME_TASKS and relative(path).split("/")[0] not in ("tasks", "metrics", "bench")
    ],
    ids=relative,
)
def test_only_tasks_name_tasks_specs_and_metrics(path):
    assert not list(names_of_tasks(path))


COMPILER = """
import sys
from anaphor.cli.main import main
code = main(["train", "lm", "--data", "grammar", "--width", "16", "--steps", "2", "--out", sys.argv[1], "--json"])
sys.exit(code or "torch._dynamo" in sys.modules)
"""


def test_training_does_not_import_the_compiler_of_torch(tmp_path):
    """It takes as long as to import torch."""
    words = [sys.executable, "-c", COMPILER, str(tmp_path / "run")]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


FLAGS = [
    "data",
    "tokenizer",
    "model",
    "mixers",
    "width",
    "layers",
    "heads",
    "feedforward",
    "dropout",
    "tied",
    "position",
    "merge",
    "batch-size",
    "bptt",
    "carry",
    "memory",
    "epochs",
    "steps",
    "minutes",
    "optimizer",
    "lr",
    "schedule",
    "clip",
    "seed",
    "device",
    "dtype",
    "activation-reg",
    "temporal-activation-reg",
    "cuda-graph",
    "layer-lr",
    "layer-widths",
    "layer-norms",
    "layer-residuals",
    "layer-dropouts",
    "min-lr-ratio",
    "plateau-factor",
    "max-positions",
    "max-examples",
    "init-scheme",
    "normalize",
    "random-offset",
    "eval-every",
    "eval-batch-size",
    "select",
    "batching",
]
TRAIN_FLAGS = [
    "recipe",
    "config",
    "import",
    "out",
    "resume",
    "force",
    "overwrite",
    "save-minutes",
    "no-test",
    "tensorboard",
    "dry-run",
    "json",
]
OLD_FLAGS = [
    "size-penalty",
    "change-penalty",
    "disagreement-penalty",
    "capture",
    "rates",
    "widths",
    "norms",
    "residuals",
    "dropouts",
    "final",
    "divisor",
    "positions",
    "longest",
    "limit",
    "initial",
    "normalise",
    "shift",
    "evaluate-every",
    "evaluation-rows",
]


def test_train_has_the_flags_of_the_field():
    from anaphor.cli.train import options_of

    lm = {flag.name for flag in flags_of(options_of(TASKS["lm"])).values()}
    translate = {flag.name for flag in flags_of(options_of(TASKS["translate"])).values()}
    assert set(FLAGS) | set(TRAIN_FLAGS) <= lm
    assert {"rdrop", "max-length", "source", "target", "beam"} <= translate
    assert not (lm | translate) & set(OLD_FLAGS)


@pytest.mark.parametrize("task", ["lm", "translate"])
def test_help_is_in_sections_and_says_one_thing_of_each_flag(task, capsys):
    from anaphor.cli.main import main

    assert main(["train", task, "--help"]) == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^[╭─ ]*(options|\w+ options)\s[─╮\s]*$", text, flags=re.MULTILINE)
    assert titles == ["options", "data options", "model options", "training options", "evaluation options"]
    from anaphor.cli.train import options_of

    for flag in flags_of(options_of(TASKS[task])).values():
        assert flag.help, f"--{flag.name} has no help"
        assert len(flag.help) <= 120, f"--{flag.name}: {flag.help}"


# Old words of this project that nobody searches for, and British spelling.
OLD_WORDS = re.compile(
    r"whoever|stands? in train|begun otherwise|all the same|goes on\b|is told\b|means nothing to|is forgotten|"
    r"remarkable|stand behind it|\bnobody\b|somebody|--evaluate-every|--evaluation-rows|--rates|--shift\b|--limit\b|"
    r"--longest\b|--normalise|--initial\b|--capture\b|-penalty\b(?<!length-penalty)|"
    r"colour|behaviour|neighbour|labell(?!edby)|modell|\bcentre|\bgrey|\blearnt\b|\bprogramme\b|"
    r"(?:normal|initial|general|regular|token|visual|summar|random|serial|optim|minim|maxim|recogn)is(?:e|ing|ation)",
    re.I,
)
KEPT_KEYS = re.compile(r"""[`"](?:remarkable|normalised)[`"]""")  # of `look --json`, which scripts use
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for suffix in ("py", "yaml") for path in (ROOT / "examples").rglob(f"*.{suffix}")),
    *sorted(path for suffix in ("py", "yaml", "js", "css", "html") for path in SOURCE.rglob(f"*.{suffix}")),
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_text_has_old_words_or_british_spelling(path):
    """Messages, help and pages, and also comments and recipes: users read them, too."""
    text = re.sub(r"\s*\n\s*(?:#|//)?\s*", " ", path.read_text(encoding="utf-8"))  # phrases may be split by lines
    text = KEPT_KEYS.sub("", text)
    assert not [text[max(found.start() - 40, 0) : found.end() + 40] for found in OLD_WORDS.finditer(text)]


OLD_NAMES = {
    "Prepared", "made", "opened", "Restraint", "Disagreement", "Watcher", "stepped", "heard", "Listener", "Ended",
    "took", "fruitless", "tellable", "told", "hears", "refuse_unread", "without_replaced", "place_of", "at_hand",
    "to_go_on", "to_use", "Trunk", "whole_because", "Growing", "by_logits",
}  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_name_is_an_old_one(path):
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not names & OLD_NAMES
