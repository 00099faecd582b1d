"""Every test has an empty cache of its own and no data folder, unless it asks for the shared one."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
CHOSEN = os.environ.get("ANAPHOR_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ANAPHOR_CACHE", str(folder))
    monkeypatch.delenv("ANAPHOR_DATA", raising=False)
    return folder


@pytest.fixture
def real_data(monkeypatch):
    folder = Path(CHOSEN) if CHOSEN else BESIDE
    if not all((folder / name).is_dir() for name in ("wikitext-2", "tinyshakespeare")):
        pytest.skip("real data is neither in $ANAPHOR_DATA nor in shared/data beside the project")
    monkeypatch.setenv("ANAPHOR_DATA", str(folder))
    return folder
