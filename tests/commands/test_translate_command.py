"""`anaphor translate`: what it prints, what it writes, what it keeps and what it refuses."""

import gzip
import io
import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sacrebleu
import torch

from anaphor.cli.main import main

SETTINGS = "--batch-size 16 --device cpu --no-test --beam 1"
MODELS = {
    "copy": "--model luong --width 64 --lr 0.01 --steps 200 --eval-every 200",
    "other": "--model luong --width 16 --steps 2 --seed 1",
    "deep": "--model transformer-translation --layers 2 --heads 2 --position learned --max-positions 9 --width 8 "
    "--steps 1",
    "letters": "--model luong --width 16 --steps 2 --tokenizer character",
    "state": "--model luong --width 16 --steps 2 --condition state",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of small runs that say words once more, by name; `copy` has learnt it."""
    folder = tmp_path_factory.mktemp("runs")
    draw = random.Random(0)
    for split, count in (("train", 600), ("valid", 8)):
        lines = [" ".join(draw.choices("abcde", k=draw.randint(1, 4))) for _ in range(count)]
        for language, text in (("en", lines), ("de", [line.upper() for line in lines])):
            (folder / f"{split}.{language}").write_text("\n".join(text))
    (folder / "text.txt").write_text("a b c d e\n" * 100)
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(folder / "cache"))
        for name, model in MODELS.items():
            words = ["train", "translate", "--data", str(folder), "--source", "en", "--out", str(folder / name)]
            assert main([*words, *model.split(), *SETTINGS.split(), "--json"]) == 0
        words = ["train", "lm", "--data", str(folder / "text.txt"), "--out", str(folder / "language")]
        assert main([*words, "--width", "8", "--steps", "1", "--no-test", "--device", "cpu", "--json"]) == 0
    return {name: folder / name for name in (*MODELS, "language")}


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


def told(capsys, *words):
    """What the command prints, and what it says beside it."""
    capsys.readouterr()
    assert main(["translate", *map(str, words), "--device", "cpu"]) == 0
    return capsys.readouterr()


def refused(error_of, *words):
    return error_of(["translate", *map(str, words), "--device", "cpu"])


def test_people_get_a_line_for_each_sentence(runs, capsys):
    captured = told(capsys, runs["copy"], "a b c", "  e d c b ", "c c")
    assert captured.out == "A B C\nE D C B\nC C\n"
    assert captured.err == ""


def test_the_scores_of_a_run_are_those_of_what_it_writes(runs, capsys, answer_of):
    folder = runs["other"].parent
    written = told(capsys, runs["other"], "--file", folder / "valid.en", "--beam", 1).out.splitlines()
    references = (folder / "valid.de").read_text().splitlines()
    expected = sacrebleu.corpus_chrf(written, [references]).score
    (score,) = answer_of(["evaluate", str(runs["other"]), "--device", "cpu", "--json"])
    assert 0 < expected < 100, written
    assert score["chrf"] == pytest.approx(expected, abs=1e-9)
    assert score["bleu"] == pytest.approx(sacrebleu.corpus_bleu(written, [references], smooth_method="none").score)
    assert score["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    kept = json.loads((runs["other"] / "result.json").read_text())["valid"]
    assert (kept["chrf"], kept["chrf_signature"]) == (score["chrf"], score["chrf_signature"])
    assert main(["evaluate", str(runs["copy"]), "--device", "cpu"]) == 0
    assert "  chrF 100.00 (nrefs:1|" in capsys.readouterr().out


def test_lines_of_a_file_stay_in_their_places_empty_ones_too(runs, tmp_path, capsys):
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf\r\na b\r\n\r\n  \r\nd d e\r\n\r\n"))
    captured = told(capsys, runs["copy"], "--file", tmp_path / "in.txt.gz")
    assert captured.out == "\nA B\n\n\nD D E\n\n"
    captured = told(capsys, runs["copy"], "--file", tmp_path / "in.txt.gz", "--json", "--n-best", 2)
    found = json.loads(captured.out)
    assert [one["source"] for one in found] == ["", "a b", "", "  ", "d d e", ""]
    assert [len(one["translations"]) for one in found] == [0, 2, 0, 0, 2, 0]
    assert found[0]["alignment"] is None
    (tmp_path / "empty.txt").write_text("")
    assert told(capsys, runs["copy"], "--file", tmp_path / "empty.txt").out == ""


def test_several_translations_come_with_their_scores(runs, capsys):
    captured = told(capsys, runs["copy"], "a b c", "", "d e", "--n-best", 3)
    lines = [line.split("\t") for line in captured.out.splitlines()]
    assert [line[0] for line in lines] == ["1", "1", "1", "2", "3", "3", "3"]
    assert lines[0][2] == "A B C"
    assert float(lines[0][1]) > float(lines[1][1]) > float(lines[2][1])


def test_json_has_tokens_scores_and_the_alignment(runs, capsys):
    (found,) = json.loads(told(capsys, runs["copy"], "a b c", "--n-best", 2, "--length-penalty", 1, "--json").out)
    best, second = found["translations"]
    assert found["source"] == "a b c"
    assert (best["text"], best["tokens"], best["finished"]) == ("A B C", ["A", "B", "C"], True)
    assert best["score"] == pytest.approx(best["log_probability"] / 4), "three tokens and an end"
    assert best["score"] > second["score"]
    aligned = found["alignment"]
    assert (aligned["source"], aligned["target"]) == (["a", "b", "c"], ["A", "B", "C", "<eos>"])
    weights = torch.tensor(aligned["weights"])
    assert weights.shape == (4, 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))
    (found,) = json.loads(told(capsys, runs["state"], "a b c", "--json").out)
    assert found["alignment"] is None, "a model that looks at no source has none"


def test_the_alignment_is_told_as_text_and_written_as_figures_and_pages(runs, tmp_path, capsys):
    captured = told(capsys, runs["copy"], "a b", "", "c", "--align", "--out", tmp_path / "out")
    lines = captured.out.splitlines()
    assert lines[0] == "A B"
    assert lines[1].startswith("  A: [a/")
    assert lines[3].startswith("  <eos>: [a/")
    assert lines[4:6] == ["", "C"]
    assert captured.err == f"anaphor: 2 alignments in {tmp_path / 'out'}, each as PNG, SVG and HTML\n"
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"alignment-{place}.{ending}" for place in (1, 3) for ending in ("html", "png", "svg")]
    assert (tmp_path / "out" / "alignment-1.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "out" / "alignment-1.svg").getroot().tag.endswith("svg")
    assert "Content-Security-Policy" in (tmp_path / "out" / "alignment-1.html").read_text(encoding="utf-8")


def test_an_end_that_was_never_written_has_no_line_in_the_alignment(runs, tmp_path, capsys):
    words = (runs["copy"], "a b c d", "--max-length", 2, "--out", tmp_path / "out")
    (found,) = json.loads(told(capsys, *words, "--json").out)
    (best,) = found["translations"]
    assert (best["tokens"], best["finished"]) == (["A", "B"], False)
    assert found["alignment"]["target"] == ["A", "B"]
    assert len(found["alignment"]["weights"]) == 2
    assert "eos" not in (tmp_path / "out" / "alignment-1.html").read_text(encoding="utf-8")
    lines = told(capsys, *words, "--align").out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["A B", "  A", "  B"]
    (whole,) = json.loads(told(capsys, runs["copy"], "a b c d", "--json").out)
    cut, every = (torch.tensor(one["alignment"]["weights"]) for one in (found, whole))
    torch.testing.assert_close(cut, every[:2])


def test_several_runs_vote(runs, capsys):
    (alone,) = json.loads(told(capsys, runs["copy"], "a b c", "--json").out)
    (together,) = json.loads(told(capsys, runs["copy"], "a b c", "--ensemble", runs["other"], "--json").out)
    assert together["translations"][0]["text"] == "A B C"
    assert together["translations"][0]["log_probability"] < alone["translations"][0]["log_probability"] - 0.1
    assert together["alignment"] == alone["alignment"], "that of the first run"


def test_unknown_words_and_cuts_are_told_in_a_line_each(runs, capsys):
    captured = told(capsys, runs["copy"], "a zebra b", "c <b>", "zebra")
    assert captured.out.count("\n") == 3
    assert captured.err == "anaphor: not in the vocabulary, replaced by <unk>: zebra, <b>\n"
    captured = told(capsys, runs["copy"], "a b c d", "--max-length", 2)
    assert captured.err == "anaphor: cut at the maximum length: translation of sentence 1\n"
    captured = told(capsys, runs["copy"], "a b c d", "e", "d c b", "--max-length", 2)
    assert captured.err == "anaphor: cut at the maximum length: translation of sentence 1, 3\n"


def test_layers_can_be_chosen(runs, capsys):
    rows = [json.loads(told(capsys, runs["deep"], "a b c", "--json", "--layer", layer).out) for layer in (0, 1)]
    (last,) = json.loads(told(capsys, runs["deep"], "a b c", "--json").out)
    assert last["alignment"] == rows[1][0]["alignment"] != rows[0][0]["alignment"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{copy}"], "the text is missing: give texts behind the run, or a file with --file (- is standard input)"),
        (["{copy}", "a", "--file", "f"], "give texts behind the run, or a file with --file, but not both"),
        (
            ["{copy}", "--ensemble", "{other}", "a b"],
            "--ensemble takes all values after it, so write the sentences before it, or name a file with",
        ),
        (["{copy}", "a", "--n-best", "6"], "n_best=6: it must be at least 1 and at most the beam of 5"),
        (["{copy}", "a", "--beam", "0", "--n-best", "1"], "beam=0: it must be at least 1"),
        (["{copy}", "a", "--length-penalty", "-1"], "length_penalty=-1.0: it must be from 0 to 10"),
        (["{copy}", "a", "--length-penalty", "nan"], "length_penalty=nan: it must be from 0 to 10"),
        (["{copy}", "a", "--layer", "0"], "layer=0 has no effect without --align, --out or --json"),
        (["{copy}", "a", "--max-length", "0"], "max_length=0: it must be at least 1"),
        (["{copy}", "a", "--ensemble", "{copy}"], "is given twice: a run counts once"),
        (["{copy}", "a", "--ensemble", "{letters}"], "have different tokenizers: they cannot form an ensemble"),
        (["{copy}", "a", "--align", "--layer", "1"], "layer=1: cross-attention is in layer 0 only"),
        (["{copy}", "a b <eos> c"], "sentence 1 holds '<eos>', which marks the end of a sentence"),
        (["{state}", "a", "--align"], "condition='state' has no cross-attention, so there is no alignment"),
        (["{state}", "a", "--out", "nowhere"], "condition='state' has no cross-attention, so there is no alignment"),
        (["{language}", "a"], "is a run of `train lm`: use one of `train translate`"),
        (["{copy}/nowhere", "a"], "nowhere"),
        (["{deep}", "a", "a a a a a a a a a a"], "sentence 2 is too long: it has 10 tokens, and the limit is 9"),
        (["{copy}", "--file", "{copy}/nowhere"], "cannot read"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(runs, error_of, words, message):
    assert message in refused(error_of, *(word.format(**runs) for word in words))


def test_look_shows_the_alignment_of_a_translation(runs, tmp_path, capsys, answer_of):
    words = ["look", str(runs["copy"]), "a b", "--out", str(tmp_path / "out"), "--device", "cpu"]
    found = answer_of([*words, "--json"])
    assert [path.rpartition("/")[2] for path in found["written"]] == [
        "alignment.html", "alignment.png", "alignment.svg",
    ]  # fmt: skip
    assert all(Path(path).is_file() for path in found["written"])
    (expected,) = answer_of(["translate", str(runs["copy"]), "a b", "--json", "--device", "cpu"])
    assert found["translation"] == expected["translations"][0]["text"]
    assert found["alignment"] == expected["alignment"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == found["translation"]
    assert lines[1].startswith(f"  {found['alignment']['target'][0]}: [a/")


def test_a_language_model_is_not_compared_with_a_translation(runs, tmp_path, error_of):
    words = ["look", str(runs["language"]), "a", "--compare", str(runs["copy"]), "--out", str(tmp_path / "out")]
    line = error_of([*words, "--device", "cpu"])
    assert line == f"{runs['copy']} is a run of `train translate`: use one of `train lm`"
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_text_is_refused_with_the_place(runs, tmp_path, error_of):
    (tmp_path / "in.txt").write_bytes(b"a b\nc \xff d\n")
    line = refused(error_of, runs["copy"], "--file", tmp_path / "in.txt")
    assert f"{tmp_path / 'in.txt'} is not UTF-8: byte 0xff at byte offset 6" in line
    (tmp_path / "in.txt").write_text("a b\n\na <eos>\n")
    line = refused(error_of, runs["copy"], "--file", tmp_path / "in.txt")
    assert f"line 3 of {tmp_path / 'in.txt'} holds '<eos>'" in line


def test_a_place_that_cannot_be_written_is_told(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    capsys.readouterr()
    assert main(["translate", str(runs["copy"]), "a", "--device", "cpu", "--out", str(tmp_path / "file")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"out={tmp_path / 'file'} cannot be written to" in line


@pytest.fixture
def little(runs, tmp_path, capsys):
    """A run that learnt five of its pairs, and one with long targets; the first has no sentence of test in common."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split, lines in (("train", "abcdefghij"), ("valid", "ab"), ("test", "ij")):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("".join(f"{line} {line}\n" for line in lines))
    words = ["train", "translate", "--data", str(folder), "--source", "en", "--width", "8", "--steps", "1"]
    assert main([*words, "--max-examples", "5", "--device", "cpu", "--json", "--out", str(tmp_path / "run")]) == 0
    return tmp_path / "run", json.loads(capsys.readouterr().out)


def test_what_was_trained_on_can_be_scored_where_pairs_were_left_out(little, answer_of):
    run, _ = little
    (score,) = answer_of(["evaluate", str(run), "--split", "train", "--device", "cpu", "--json"])
    assert score["tokens"] == 5 * 3
    assert main(["evaluate", str(run), "--device", "cpu", "--batch-size", "3"]) == 2


def test_a_run_can_be_scored_by_another_search(runs, answer_of, error_of):
    found = []
    for words in ([], ["--beam", "3", "--length-penalty", "2"]):
        found += answer_of(["evaluate", str(runs["copy"]), *words, "--device", "cpu", "--json"])
    assert found[0]["loss"] == found[1]["loss"]
    assert ("beam:1|penalty:1" in found[0]["signature"], "beam:3|penalty:2" in found[1]["signature"]) == (True, True)
    line = error_of(["evaluate", str(runs["language"]), "--beam", "3", "--device", "cpu"])
    assert "--beam is for runs of `train translate`;" in line
    line = error_of(["evaluate", str(runs["copy"]), "--data", "reverse", "--device", "cpu"])
    assert "--data is for runs of `train lm` or `train images` or `train classify`; " in line


def test_pairs_that_were_left_out_were_not_learnt(little):
    _, result = little
    assert result["test"]["overlap"] == {"unit": "pairs", "test": 2, "in_train": 0}


def test_it_is_told_how_many_pairs_are_too_long(runs, tmp_path, capsys, answer_of):
    folder = runs["copy"].parent
    longer = sum(len(line.split()) > 3 for line in (folder / "train.en").read_text().splitlines())
    small = f"--source en --max-length 3 --steps 1 --out {tmp_path}/short"
    words = f"train translate --data {folder} {small} {SETTINGS}".split()
    assert answer_of([*words, "--dry-run", "--json"])["left_out"] == longer > 0
    assert main([*words, "--width", "8"]) == 0
    assert f"left out: {longer} examples (too long)\n" in capsys.readouterr().out


def test_a_translation_does_not_depend_on_its_neighbours(runs, capsys):
    alone = told(capsys, runs["other"], "a b").out.splitlines()
    beside = told(capsys, runs["other"], "a b", "a b c d e " * 9).out.splitlines()
    assert alone[0] == beside[0]


def test_a_translation_that_was_cut_says_so(runs, capsys):
    found = told(capsys, runs["copy"], "a b c d", "--max-length", "2", "--json")
    (one,) = json.loads(found.out)
    assert not one["translations"][0]["finished"]
    assert "cut at the maximum length" in found.err
    found = told(capsys, runs["copy"], "a b c d", "--json")
    assert json.loads(found.out)[0]["translations"][0]["finished"]
    assert "cut" not in found.err


def test_a_bound_that_is_asked_for_holds_for_short_sources_too(runs, capsys):
    (one,) = json.loads(told(capsys, runs["other"], "a", "--max-length", "60", "--beam", "1", "--json").out)
    assert len(one["translations"][0]["tokens"]) == 60, "an untrained model does not stop"


def test_scores_tell_how_many_translations_were_cut(little):
    _, result = little
    assert "|cut:2" in result["valid"]["signature"]


def test_without_a_source_an_encoder_is_refused(error_of):
    line = error_of(["train", "translate", "--condition", "none", "--encoder", "gru"])
    assert "condition='none' does not read the source" in line


def test_sentences_may_come_from_standard_input(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a b\nc\n")))
    assert told(capsys, runs["copy"], "--file", "-").out.splitlines() == ["A B", "C"]
