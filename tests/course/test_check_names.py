"""Names of attributes: a right class passes whatever its weights are called, and what cannot be read is told."""

import ast
import json
import shutil

import pytest

from anaphor.cli.main import main
from anaphor.course.catalog import find_reference
from anaphor.course.check import check
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.course.student import load_subject
from course.students import check_source, names_of
from course.test_check_attention import HEAD

SHEETS = [number for number in sheet_numbers() if (read_sheet(number).folder / "solutions").is_dir()]


class Renamer(ast.NodeTransformer):
    """Gives every attribute that is set on `self` a name that says nothing."""

    def __init__(self, names):
        self.names = names

    def visit_Attribute(self, node):
        self.generic_visit(node)
        node.attr = self.names.get(node.attr, node.attr)
        return node


def rename_attributes(source, name_of):
    tree = ast.parse(source)
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    set_on_self = [node.attr for node in stored if getattr(node.value, "id", "") == "self"]
    names = {name: name_of(number) for number, name in enumerate(dict.fromkeys(set_on_self))}
    return ast.unparse(Renamer(names).visit(tree))


def modules_of(sheet):
    return [
        (exercise.file, one)
        for exercise in sheet.exercises
        for one in exercise.checks
        if find_reference(one.reference).read is not None
    ]


@pytest.mark.parametrize("name_of", [lambda n: f"part_{n}", lambda n: f"proj{n}"], ids=["empty", "misleading"])
@pytest.mark.parametrize("number", SHEETS)
def test_a_solution_passes_with_other_names_of_attributes(number, name_of, tmp_path):
    sheet = read_sheet(number)
    shutil.copytree(sheet.folder / "solutions", tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("*.py"):
        path.write_text(rename_attributes(path.read_text(encoding="utf-8"), name_of), encoding="utf-8")
    for file, one in modules_of(sheet):
        report = check(find_reference(one.reference), load_subject(f"{tmp_path / file}::{one.name}"))
        assert report.passed, (one.name, [mistake.text for mistake in report.mistakes])


FUSED = """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.lin = nn.Linear(dim, 3 * n_hidden)

    def forward(self, x, attn_mask=None):
        q, k, v = self.lin(x).chunk(3, dim=-1)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -torch.inf)
        A = scores.softmax(-1)
        return A @ v, A

class MultiHeadAttention(nn.Module):
    def __init__(self, dim, n_hidden, num_heads):
        super().__init__()
        self.heads = nn.ModuleList(AttentionHead(dim, n_hidden) for _ in range(num_heads))
        self.out = nn.Linear(num_heads * n_hidden, dim)

    def forward(self, x, attn_mask=None):
        out, A = zip(*(head(x, attn_mask) for head in self.heads))
        return self.out(torch.cat(out, -1)), torch.stack(A, 1)

class TransformerBlock(nn.Module):
    def __init__(self, dim, attn_dim, mlp_dim, num_heads):
        super().__init__()
        self.attention = MultiHeadAttention(dim, attn_dim, num_heads)
        self.ffn = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x, attn_mask=None):
        y, A = self.attention(x, attn_mask)
        x = x + y
        return x + self.ffn(x), A

class Transformer(nn.Module):
    def __init__(self, dim, attn_dim, mlp_dim, num_heads, num_layers):
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(dim, attn_dim, mlp_dim, num_heads) for _ in range(num_layers))

    def forward(self, x, attn_mask=None):
        maps = []
        for block in self.blocks:
            x, A = block(x, attn_mask)
            maps.append(A)
        return x, torch.stack(maps, 1)
"""


@pytest.mark.parametrize("attribute", ["qkv", "lin", "fused", "W", "all_three", "proj", "out", "query", "key_value"])
@pytest.mark.parametrize("name", ["AttentionHead", "MultiHeadAttention", "TransformerBlock", "Transformer"])
def test_one_fused_matrix_for_each_head_may_have_any_name(name, attribute, tmp_path):
    report = check_source(tmp_path, FUSED.replace("self.lin", f"self.{attribute}"), name)
    assert report.passed, [mistake.text for mistake in report.mistakes]


def test_names_that_say_it_still_decide_what_is_a_query(tmp_path):
    swapped = HEAD.replace("q @ k.transpose(-1, -2)", "k @ q.transpose(-1, -2)")
    assert swapped != HEAD
    assert names_of(check_source(tmp_path, swapped, "AttentionHead")) == {"queries-and-keys-swapped"}


UNREADABLE = """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.low, self.high = nn.Linear(dim, 2, bias=False), nn.Linear(2, n_hidden)

    def forward(self, x, attn_mask=None):
        v = self.high(self.low(x))
        A = (v @ v.mT).softmax(-1)
        return A @ v, A
"""


def test_weights_that_cannot_be_read_are_told_and_nothing_was_checked(tmp_path, capsys):
    report = check_source(tmp_path, UNREADABLE, "AttentionHead")
    assert (names_of(report), report.checked, report.passed) == ({"weights-not-read"}, (), False)
    assert "nothing was compared" in report.mistakes[0].text
    (tmp_path / "mine.py").write_text("import math, torch\nfrom torch import nn\n" + UNREADABLE, encoding="utf-8")
    assert main(["check", f"{tmp_path / 'mine.py'}::AttentionHead", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert {*printed} == {"name", "reference", "passed", "mistakes", "checked"}
    assert (printed["passed"], printed["checked"]) == (False, [])
