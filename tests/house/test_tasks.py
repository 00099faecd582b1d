"""Rules of the house: only tasks know tasks, the help says one thing of each flag."""

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

# May name tasks, their specs and metrics: the registry, the package's own names, the verbs of one task, and a course,
# whose exercises are on one task each.
MAY_NAME_TASKS = {
    "registry.py",
    "__init__.py",
    *(f"cli/{verb}.py" for verb in ("translate", "bleu", "generate", "score")),
    *(f"cli/{verb}_texts.py" for verb in ("translate", "generate", "score")),
}
TASK_NAMES = {"lm", "translate"}
TASK_WORDS = re.compile(r"LanguageRunSpec|TranslationRunSpec|perplexity|bleu|chrf|bits_per_byte|bits per byte", re.I)


def relative(path):
    return path.relative_to(SOURCE).as_posix()


def docstrings(tree):
    bodies = [node.body for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)]
    statements = [statement for body in bodies for statement in body if isinstance(statement, ast.Expr)]
    return {id(statement.value) for statement in statements if isinstance(statement.value, ast.Constant)}


def drop_types(tree):
    """The code without what only a type checker reads: imports for types, and the overloads of a function."""
    for node in ast.walk(tree):
        if hasattr(node, "body") and isinstance(node.body, list):
            node.body = [statement for statement in node.body if not is_for_types(statement)] or [ast.Pass()]
    return tree


def is_for_types(statement):
    if isinstance(statement, ast.If):
        return isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING"
    decorators = getattr(statement, "decorator_list", [])
    return any(isinstance(decorator, ast.Name) and decorator.id == "overload" for decorator in decorators)


def names_of_tasks(path):
    tree = drop_types(ast.parse(path.read_text(encoding="utf-8")))
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
        if relative(path) not in MAY_NAME_TASKS
        and relative(path).split("/")[0] not in ("tasks", "metrics", "extras", "examples", "course")
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


@pytest.mark.slow
def test_training_does_not_import_the_compiler_of_torch(tmp_path):
    """It takes as long as to import torch."""
    words = [sys.executable, "-c", COMPILER, str(tmp_path / "run")]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("task", ["lm", "translate"])
def test_help_is_in_sections_and_says_one_thing_of_each_flag(task, capsys):
    from anaphor.cli.main import main

    assert main(["train", task, "--help"]) == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^(options|[\w ]+ options):$", text, flags=re.MULTILINE)
    assert titles[:5] == ["options", "data options", "model options", "training options", "evaluation options"]
    from anaphor.cli.train import flags_class

    for flag in flags_of(flags_class(TASKS[task])).values():
        assert flag.help, f"--{flag.name} has no help"
        assert len(flag.help) <= 120, f"--{flag.name}: {flag.help}"
