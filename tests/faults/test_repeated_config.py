"""A setting or a file that is given twice is refused: it would be unclear which one counts."""

import pytest


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "a.yaml", "--config", "b.yaml"],
        ["--config=a.yaml", "--config", "b.yaml"],
        ["--config", "a.yaml", "--config", "a.yaml"],
        ["--recipe", "wikitext-2-lstm", "--recipe", "wikitext-2-hybrid"],
        ["--lr", "0.1", "--lr", "0.2"],
    ],
)
def test_twice(text, tmp_path, error_of, words):
    (tmp_path / "a.yaml").write_text("width: 4\n")
    (tmp_path / "b.yaml").write_text("width: 8\n")
    line = error_of(["train", "lm", "--data", "text", "--steps", "1", "--out", "run", *words])
    assert f"{words[0].partition('=')[0]} is given twice" in line
    assert not (tmp_path / "run").exists()
