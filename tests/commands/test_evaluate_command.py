"""`anaphor evaluate`: what its rows say to people."""

import pytest

from anaphor.cli.main import main


def beginnings(capsys, *words):
    assert main(["evaluate", *words, "--device", "cpu"]) == 0
    return [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if "perplexity" in line]


def test_rows_of_both_states_say_which_is_theirs(run, capsys):
    both = ["--state", "carried", "restarted"]
    assert beginnings(capsys, run, "--bptt", "2", "3", *both) == [
        "bptt 2, state carried", "bptt 3, state carried", "bptt 2, state restarted", "bptt 3, state restarted",
    ]  # fmt: skip
    assert beginnings(capsys, run, "--bptt", "2", "--state", "restarted") == ["bptt 2"]


def test_one_token_is_one_token(run, capsys):
    assert main(["evaluate", run, "--device", "cpu", "--bptt", "2", "--batch-size", "12"]) == 0
    assert "segments have 1 token, because no row of the text is longer" in capsys.readouterr().out


def test_another_text_than_in_training_is_told(run, tmp_path, capsys):
    words = ["evaluate", run, "--split", "valid", "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / "text.txt").write_text("a b c d d\n" * 40)
    assert main(words) == 0
    told = capsys.readouterr().err.splitlines()
    line = "anaphor: {} has changed since {} was trained"
    assert told == [line.format(split, run) for split in ("train", "valid")]


def test_more_rows_than_tokens_are_refused(run, capsys, error_of):
    words = ["evaluate", run, "--device", "cpu", "--bptt", "2", "--batch-size"]
    assert main([*words, "12", "--json"]) == 0
    assert "|batch:12|" in capsys.readouterr().out  # of 12 tokens
    assert error_of([*words, "13"]) == "batch_size=13: each row needs a token, and valid has 12"


@pytest.mark.parametrize(("words", "rows"), [("a dog", 3), ("a dog on the mat " * 3, 10)])
def test_the_signature_of_a_short_text_has_the_rows_that_there_were(words, rows, run, tmp_path, answer_of):
    (tmp_path / "other.txt").write_text(words)
    (row,) = answer_of(["evaluate", str(run), "--data", str(tmp_path / "other.txt"), "--json"])
    assert f"|batch:{rows}|" in row["signature"]
    again = ["evaluate", str(run), "--data", str(tmp_path / "other.txt"), "--batch-size", str(rows), "--json"]
    assert answer_of(again) == [row]


def test_another_split_is_refused_with_the_nearest_one(run, capsys):
    assert main(["evaluate", run, "--split", "tset"]) == 2
    assert (
        capsys.readouterr().err == "anaphor: unknown split 'tset'; did you mean 'test'? (known: test, train, valid)\n"
    )


def test_one_file_of_other_text_is_scored_as_a_whole(run, tmp_path, capsys, answer_of):
    (tmp_path / "other.txt").write_text("a b c d e\n" + "e d c b a\n" * 4)
    words = ["evaluate", run, "--data", str(tmp_path / "other.txt"), "--device", "cpu", "--bptt", "2"]
    (row,) = answer_of([*words, "--json"])
    assert "|tokens:30|" in row["signature"]
    # Text of training is not new to the model, and a whole file may hold some.
    assert row["overlap"] == {"unit": "lines", "test": 5, "in_train": 1, "split": "all"}
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all/train overlap: 1 of 5 lines"
    assert main([*words, "--batch-size", "31"]) == 2
    assert capsys.readouterr().err.endswith(f"each row needs a token, and {tmp_path / 'other.txt'} has 30\n")


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_other_text_that_is_mostly_unknown_is_called_so(run, tmp_path, capsys, share):
    """Its perplexity is that of <unk>, and says little."""
    line = " ".join(["a"] * round(10 * (1 - share)) + ["zzz"] * round(10 * share))  # eleven tokens with its end
    (tmp_path / "other.txt").write_text(f"{line}\n" * 10)
    assert main(["evaluate", str(run), "--data", str(tmp_path / "other.txt"), "--device", "cpu"]) == 0
    warning = "tokens that are not in the vocabulary: 54.5% of all; they are scored as <unk>\n"
    assert (warning in capsys.readouterr().out) == (share > 0.5)


def test_a_split_that_is_named_is_that_of_the_file(run, tmp_path, answer_of):
    (tmp_path / "other.txt").write_text("e d c b a\n" * 40)
    words = ["evaluate", run, "--data", str(tmp_path / "other.txt"), "--device", "cpu", "--json"]
    for split, tokens in (("train", 222), ("valid", 12), ("test", 6)):
        (row,) = answer_of([*words, "--split", split])
        assert f"|tokens:{tokens}|" in row["signature"]


def test_the_run_s_own_file_and_data_sets_with_splits_are_scored_on_valid(run, tmp_path, answer_of):
    for split, lines in (("train", 9), ("valid", 3)):
        (tmp_path / f"{split}.txt").write_text("a b c d e\n" * lines)
    for other, tokens in (([], 12), (["--data", str(tmp_path)], 18)):
        (row,) = answer_of(["evaluate", run, *other, "--device", "cpu", "--json"])
        assert f"|tokens:{tokens}|" in row["signature"]
        assert "overlap" not in row


def test_the_overlap_of_other_data_is_that_with_the_text_of_training(run, tmp_path, answer_of):
    other = tmp_path / "other"
    other.mkdir()
    for split in ("train", "valid"):
        (other / f"{split}.txt").write_text("f f f\n" * 20, encoding="utf-8")
    (other / "test.txt").write_text("a b c d e\nf f f\nf a f a\n", encoding="utf-8")
    flags = ["evaluate", run, "--split", "test", "--data", str(other), "--device", "cpu", "--json"]
    assert answer_of(flags)[0]["overlap"] == {"unit": "lines", "test": 3, "in_train": 1}
    (tmp_path / "text.txt").unlink()
    assert "overlap" not in answer_of(flags)[0]
    assert main(["evaluate", run, "--split", "test", "--device", "cpu"]) == 2


@pytest.mark.parametrize("words", [["--batch-size", "1"], ["--out", "curves"]])
def test_padded_examples_have_no_rows_and_no_curves(tmp_path, error_of, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a b c\nd e\n\nb c d\n\n" * 20)
    train = ["train", "lm", "--data", "text.txt", "--batching", "padded", "--out", "run", "--width", "8"]
    assert main([*train, "--steps", "1", "--no-test", "--device", "cpu", "--json"]) == 0
    line = error_of(["evaluate", "run", "--device", "cpu", *words])
    assert f"{words[0]} needs a stream of text, and run was trained with --batching padded" in line
    assert not (tmp_path / "curves").exists()
