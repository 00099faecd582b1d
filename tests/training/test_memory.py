"""A step of training on a CPU uses the memory that the one before has freed."""

import platform
import resource
import subprocess
import sys

import pytest

PAGE = resource.getpagesize()
WORDS, WIDTH, FIRST, LAST = 17_000, 400, 5, 10
SCRIPT = f"""
import resource
import anaphor

class Faults(anaphor.NullCallback):
    def on_step(self, info):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

anaphor.train(
    "lm", out="run", callback=Faults(), data="text", model="lstm", layers=1, width={WIDTH}, tied=False, optimizer="sgd",
    lr=0.1, clip=0.25, batch_size=2, bptt=4, steps={LAST}, eval_every={LAST}, device="cpu", no_test=True, threads=1,
)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such option")
def test_a_step_asks_the_system_for_no_memory(tmp_path):
    """In a process of its own: where an earlier test wanted more than there is, the C library has gone on in another
    part of the memory, which it gives back otherwise."""
    (tmp_path / "text").mkdir()
    for split, words in (("train", WORDS), ("valid", 20)):
        (tmp_path / "text" / f"{split}.txt").write_text(" ".join(f"w{number}" for number in range(words)))
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    counts = [*map(int, done.stdout.split())]
    assert len(counts) == LAST, done.stderr
    gradient = 4 * WORDS * WIDTH / PAGE  # pages of one of two gradients of a step: of the embeddings, and of the head
    assert (counts[LAST - 1] - counts[FIRST - 1]) / (LAST - FIRST) < gradient / 2
