"""Numbers of the documentation that were measured come from `docs/results/`, and are compared with it.

Such a number is followed by a comment that says where it stands, which a reader of the page does not see:

    96.1 ± 3.1<!-- results/seed-000.md: hybrid | test perplexity -->        row and column of a table
    126.9<!-- results/seed-000.md: 2 | LSTM 64 + 3 -->                      three columns to the right of a column
    13<!-- results/heads-and-positions.md: "13 of 15 pairs differ" -->      a passage that contains the number

A row is named by cells that stand in it, separated by semicolons. A number may have fewer digits than the result.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHEETS = sorted((ROOT / "docs" / "course").glob("00*.md"))
NUMBER = r"[−+]?\d[\d,]*(?:\.\d+)?(?:\s±\s\d+(?:\.\d+)?)?"
REFERENCE = re.compile(rf"(?:({NUMBER})\s*)?<!--\s*(results/[\w.-]+):\s*(.*?)\s*-->", re.DOTALL)
DECIMAL = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.]*\d)")


def passage(text: str) -> str:
    return " ".join(text.split())


def tables(text: str) -> list[list[list[str]]]:
    """Every table of a page, row by row; bold marks are removed."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip().strip("*") for cell in line.strip().strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def look_up(result: str, where: str) -> str:
    """The text at a place of a result, which must be unique: a cell, or a passage."""
    if where.startswith('"'):
        wanted = passage(where.strip('"'))
        assert wanted in passage(result), f"no such passage: {wanted}"
        return wanted
    row, column = (part.strip() for part in where.split("|"))
    column, _, right = (part.strip() for part in column.partition(" + "))
    cells = [cell.strip() for cell in row.split(";")]
    found = [
        line[table[0].index(column) + int(right or 0)]
        for table in tables(result)
        if column in table[0]
        for line in table[2:]
        if all(cell in line for cell in cells)
    ]
    assert len(found) == 1, f"{len(found)} cells are at {where}: {found}"
    return found[0]


def agrees(shown: str, text: str, is_cell: bool) -> bool:
    """Whether the number is the cell, or stands in the passage; the page may round."""
    wanted = shown.replace(",", "").replace("\n", " ").split(" ± ")
    candidates = [text] if is_cell else re.findall(NUMBER, text)
    return any(_same(wanted, one.replace(",", "").split(" ± ")) for one in candidates)


def _same(shown: list[str], result: list[str]) -> bool:
    return len(shown) <= len(result) and all(
        f"{float(full.replace('−', '-')):.{len(short.partition('.')[2])}f}" == short.replace("−", "-").lstrip("+")
        for short, full in zip(shown, result, strict=False)
    )


def references(page: str) -> list[tuple[str, str, str]]:
    """(number, file, place) of every reference."""
    return [(number, file, " ".join(where.split())) for number, file, where in REFERENCE.findall(page)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_number_with_a_reference_is_that_of_the_result(path):
    for number, file, where in references(path.read_text(encoding="utf-8")):
        assert number, f"no number stands before the reference to {file}: {where}"
        text = look_up((ROOT / "docs" / file).read_text(encoding="utf-8"), where)
        assert agrees(number, text, is_cell=not where.startswith('"')), f"{number} is {text} in {file} ({where})"


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.name)
def test_every_decimal_number_of_the_answers_is_a_result_or_is_computed_on_the_page(path):
    _, _, page = path.read_text(encoding="utf-8").partition("\n## Answers\n")
    assert page
    code = "\n".join(re.findall(r"^```.*?^```", page, re.MULTILINE | re.DOTALL))
    prose = REFERENCE.sub("", page)
    prose = re.sub(r"^```.*?^```|`[^`]*`|\*\*[^*]+\*\*|^#[^\n]*", "", prose, flags=re.MULTILINE | re.DOTALL)
    allowed = set(DECIMAL.findall(code))
    assert set(DECIMAL.findall(prose)) <= allowed


RESULT = """
| model | | test perplexity |
| --- | --- | ---: |
| hybrid | 212 | **96.1 ± 3.1** |
| LSTM | 216 | 99.04 ± 2.1 |

It was 102.1 ± 0.8 with one rate; 13 of 15
pairs differ within noise.
"""


@pytest.mark.parametrize(
    ("number", "where", "is_right"),
    [
        ("96.1 ± 3.1", "hybrid | test perplexity", True),
        ("96.1", "hybrid; 212 | model + 2", True),
        ("99.0", "LSTM | test perplexity", True),
        ("98.4", "LSTM | test perplexity", False),
        ("96.1 ± 3.2", "hybrid | test perplexity", False),
        ("102.1", "hybrid | test perplexity", False),
        ("102.1 ± 0.8", '"102.1 ± 0.8 with one rate"', True),
        ("13", '"13 of 15 pairs differ"', True),
        ("14", '"13 of 15 pairs differ"', False),
    ],
)
def test_the_comparison_tells_right_from_wrong(number, where, is_right):
    ((found, _, place),) = references(f"perplexity is {number}<!-- results/x.md: {where} --> on test")
    assert found == number
    assert agrees(found, look_up(RESULT, place), is_cell=not place.startswith('"')) is is_right


def test_a_place_that_does_not_exist_or_is_ambiguous_fails():
    for where in ("transformer | test perplexity", '"14 of 15"', "--- | model"):
        with pytest.raises(AssertionError):
            look_up(RESULT + RESULT if where.startswith("-") else RESULT, where)
