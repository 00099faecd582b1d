"""Data diversification (Nguyen et al., 2020): a model learns from its text and from translations of that text.

    anaphor study diversify --per-device 6 --out runs/teachers
    python -m anaphor.examples.diversify runs/teachers runs/diversified
    anaphor train translate --recipe multi30k-transformer --data runs/diversified --dropout 0.2 --epochs 12 \\
        --out runs/student

Several models of each direction, the teachers, translate their own training text. A forward translation gives a source
another target, a backward translation gives a target another source. No other text is needed, and the student is a
model like any other. `--upsample 3` has the text itself three times, so that more of what it learns from is original.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import anaphor
from anaphor.beam_search import Beam
from anaphor.errors import AnaphorError
from anaphor.tasks.translate.experiment import TranslationExperiment
from anaphor.training.run_folder import RunFolder

Pairs = dict[tuple[str, str], None]
"""Sentence pairs, each once, in the order in which they were found."""


def read_teachers(study: Path, device: str) -> Iterator[tuple[str, TranslationExperiment]]:
    """The finished runs of a study of translation, each with its name."""
    cells = sorted(path.parent for path in study.glob("cells/*/result.json"))
    folders = [cell for cell in cells if RunFolder(cell).read_result().get("status") == "finished"]
    if not folders:
        raise SystemExit(f"{study} has no finished cells: it is not the folder of a study, or all of them failed")
    for folder in folders:
        experiment = anaphor.load_run(folder, device=device).experiment
        if not isinstance(experiment, TranslationExperiment) or len(experiment.source.languages) != 2:
            raise SystemExit(f"{folder} does not translate from one language to another")
        yield folder.name, experiment


def translate(teacher: TranslationExperiment, beam: int) -> list[tuple[str, str]]:
    """The training sentences of a teacher's source language with its translations; those it has no words for are left
    out."""
    sentences = list(dict.fromkeys(source for source, _ in teacher.source.rows("train").values))
    found = teacher.translate(sentences, Beam(width=beam, max_length=None))  # the most probable, whatever their length
    texts = [teacher.tokenizers.target.decode(best.tokens).replace("\n", " ") for best, *_ in found]  # a line each
    return [(source, text) for source, text in zip(sentences, texts, strict=True) if text.strip()]


def write_split(folder: Path, split: str, languages: tuple[str, ...], pairs: Iterable[tuple[str, str]]) -> None:
    for language, side in zip(languages, zip(*pairs, strict=True), strict=True):
        (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")


def diversify(study: Path, out: Path, *, device: str = "auto", beam: int = 5, upsample: int = 1) -> dict[str, int]:
    """Write the folder of a data set: the training text, `upsample` times, with all translations; validation and test
    as they are. Returns the number of training pairs before and after."""
    if upsample < 1:
        raise SystemExit(f"--upsample {upsample}: give 1 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SystemExit(f"{out} is not empty: give a new folder")
    languages: tuple[str, ...] = ()
    pairs: Pairs = {}
    originals: list[tuple[str, str]] = []
    for name, teacher in read_teachers(study, device):
        source = teacher.source
        if not languages:
            languages, pairs = source.languages, dict.fromkeys(source.rows("train").values)
            originals = list(pairs)
            out.mkdir(parents=True, exist_ok=True)
            for split in source.splits[1:]:  # without train
                write_split(out, split, languages, source.rows(split).values)
        elif sorted(source.languages) != sorted(languages):
            raise SystemExit(f"{name} is a run with other languages: {' and '.join(source.languages)}")
        start = time.perf_counter()
        found = translate(teacher, beam)
        is_forward = source.languages == languages
        pairs |= dict.fromkeys(found if is_forward else [(text, original) for original, text in found])
        way = " to ".join(source.languages)
        print(f"{name}: {len(found):,} sentences, {way}, {time.perf_counter() - start:.1f} s; {len(pairs):,} pairs")
    train = [*pairs, *originals * (upsample - 1)]
    write_split(out, "train", languages, train)
    return {"before": len(originals), "after": len(train)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="folder of a study whose cells are the teachers")
    parser.add_argument("out", type=Path, help="folder of the new data set")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--beam", type=int, default=5, help="beam width")
    parser.add_argument("--upsample", type=int, default=1, help="how many times the new text has the original pairs")
    options = vars(parser.parse_args())
    try:
        print(json.dumps(diversify(options.pop("study"), options.pop("out"), **options)))
    except AnaphorError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
