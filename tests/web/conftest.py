"""A folder with small runs of every kind, and a server for it.

The runs are trained once for all processes of a test run. Each process has its own copy of the folder, so that tests of
another one cannot change it. A test that changes runs itself makes a copy: `copied`.
"""

import fcntl
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anaphor.cli.main import main
from anaphor.registry import has_shelf
from anaphor.training.run_folder import RunFolder
from anaphor.web.catalog import make_id
from web.serving import begin_run, serving

HOSTILE = "<script>alert(1)</script>"
TEXT = f"the cat sat on the mat\nthe dog sat on the log\na bird saw {HOSTILE} on the log\n"
LANGUAGE = "lm --data data/text.txt --width 16 --batch-size 4 --bptt 8 --steps 24 --eval-every 8"
RUNS = {
    "lstm": f"{LANGUAGE} --model lstm --layers 1",
    "lstm-1": f"{LANGUAGE} --model lstm --layers 1 --seed 1",
    f"hybrid {HOSTILE.replace('/', '⁄')}": f"{LANGUAGE} --model hybrid --layers 3 --heads 2 --memory 16",
    "diverged": f"{LANGUAGE} --model lstm --layers 1 --lr 1e20",
    "translation": "translate --data data/train.en,data/train.de --model luong --width 16 --steps 4 --batch-size 8 "
    "--beam 1",
    "images": "images --data data/images --width 16 --layers 1 --steps 2 --batch-size 8",
    "labels": "classify --data data/labels.tsv --model transformer --heads 2 --width 16 --layers 1 --steps 2 "
    "--batch-size 8",
}
STUDY = """
base: {data: %s, width: 8, layers: 1, batch_size: 2, bptt: 4, steps: 4, eval_every: 2, device: cpu}
parameters:
  width: {values: [4, 8]}
seeds: 2
"""


def write_data(folder):
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT * 30, encoding="utf-8")
    draw = random.Random(0)
    for split, count in (("train", 60), ("valid", 8)):
        lines = [" ".join(draw.choices("abcde", k=draw.randint(1, 4))) for _ in range(count)]
        (folder / f"{split}.en").write_text("\n".join(lines))
        (folder / f"{split}.de").write_text("\n".join(line.upper() for line in lines))
    rows = [f"a {draw.choice(('red', 'blue'))} house {HOSTILE}" for _ in range(60)]
    labels = "".join(f"{row}\t{'warm' if 'red' in row else 'cold'}\n" for row in rows)
    (folder / "labels.tsv").write_text("text\tlabel\n" + labels)
    pixels = np.random.default_rng(0)
    for name, color in (("dark", 40), ("light", 200)):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(16):
            image = pixels.integers(color, color + 50, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / "images" / name / f"{number}.png")


def train_all(root):
    """`data/` and `runs/`; the runs that can be read by everybody and changed by nobody."""
    write_data(root / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("ANAPHOR_CACHE", str(root / "cache"))
        for name, words in RUNS.items():
            code = main(["train", *words.split(), "--out", f"runs/{name}", "--device", "cpu", "--no-test", "--json"])
            assert code == (3 if name == "diverged" else 0), name
        if has_shelf("studies"):
            run_study(root)


def run_study(root):
    from anaphor.studies.report import report
    from anaphor.studies.study import Study
    from anaphor.studies.study_file import read_study
    from anaphor.studies.study_folder import lock_study
    from studies.here import Here, Silent

    (root / "study.yaml").write_text(STUDY % (root / "data" / "text.txt"))
    folder = root / "runs" / "study"
    folder.mkdir()
    with lock_study(folder):
        study = Study(read_study(root / "study.yaml"), folder, Here(), Silent())
        study.run()
        report(study)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of runs that all processes share. Use `folder`."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if base.name.startswith("popen-") else base) / "trained"
    with open(root.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "ready").exists():
            root.mkdir()
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
            train_all(root)
            torch.set_default_dtype(before)
            (root / "ready").touch()
    return root / "runs"


@pytest.fixture(scope="session")
def folder(trained, tmp_path_factory):
    """Runs of every kind and, where studies are there, a study. `training` is one in progress."""
    folder = tmp_path_factory.mktemp("web") / "runs"
    shutil.copytree(trained, folder)
    begin_run(folder / "training", trained / "lstm")
    with RunFolder(folder / "training").lock():
        yield folder


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the runs that a test may change. Nobody trains in it."""
    return Path(shutil.copytree(folder, tmp_path / "runs"))


@pytest.fixture(scope="session")
def ids(folder):
    """Ids of the runs by name; the one with markup in its name is `hybrid`."""
    return {path.name.partition(" ")[0]: make_id(path.name) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def served(folder):
    """A server for `folder`. Its thread ends with the module: other tests start processes by forking."""
    with serving(folder) as found:
        yield found
