"""A folder with a Python file for every installed package: none of them may be executed."""

import importlib.metadata
from contextlib import contextmanager


@contextmanager
def trap(tmp_path, monkeypatch):
    """Make it the current folder; an import from it leaves a mark and fails. Beside it is a text."""
    folder, mark = tmp_path / "here", tmp_path / "executed"
    folder.mkdir()
    for name in filter(str.isidentifier, importlib.metadata.packages_distributions()):
        if name != "anaphor":  # which `python -m anaphor` would find before anything of ours is executed
            text = f"open({str(mark)!r}, 'a').write({name + ' '!r})\nraise SystemExit(99)\n"
            (folder / f"{name}.py").write_text(text)
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 20)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    yield folder
    executed = mark.read_text() if mark.exists() else ""
    assert executed == ""
