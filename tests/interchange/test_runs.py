"""Converted runs: every verb takes them, and what they export is what they were converted from."""

import json
import re
import shutil

import pytest
import torch
from peers import build, build_decoder, load, tokenizer_of

import anaphor
from anaphor.cli.main import main
from anaphor.errors import ConfigError, DataError


def save(folder, kind, family=None, **more):
    """A model and its tokenizer, as `transformers` writes them."""
    build(kind, **({"vocab_size": len(tokenizer_of(family))} if family else {}), **more).float().save_pretrained(folder)
    if family:
        tokenizer_of(family).save_pretrained(folder)
    return folder


pytestmark = pytest.mark.usefixtures("single_precision")


def convert(folder, *kind, **options):
    save(folder / "peer", *kind, **options)
    assert main(["convert", str(folder / "peer"), "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("gpt2"), "gpt2", "gpt2")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("vit"), "vit", image_size=16)


def test_a_converted_gpt2_scores_as_transformers_does(gpt2, answer_of):
    (row,) = answer_of(["score", str(gpt2 / "run"), "The statement is executed.", "--json"])
    peer = load(gpt2 / "peer", torch.float32)
    ids = torch.tensor([[0, *tokenizer_of("gpt2")("The statement is executed.")["input_ids"]]])
    with torch.no_grad():
        expected = peer(ids, labels=ids).loss.item()
    assert row["loss"] == pytest.approx(expected, abs=1e-5)


def test_a_converted_gpt2_generates_greedily_what_transformers_generates(gpt2, capsys):
    capsys.readouterr()
    assert main(["generate", str(gpt2 / "run"), "--prompt", "The", "--tokens", "12", "--temperature", "0"]) == 0
    ours = capsys.readouterr().out
    peer, tokenizer = load(gpt2 / "peer", torch.float32), tokenizer_of("gpt2")
    ids = torch.tensor([[0, *tokenizer("The")["input_ids"]]])
    with torch.no_grad():
        for _ in range(12):
            ids = torch.cat((ids, peer(ids).logits[:, -1:].argmax(-1)), dim=1)
    assert ours == tokenizer.decode(ids[0, -12:]) + "\n"


def test_a_table_of_embeddings_may_have_a_few_rows_without_a_token(tmp_path, answer_of, error_of):
    size = len(tokenizer_of("gpt2"))
    build_decoder("qwen2", vocab_size=size + 4, bos_token_id=0).float().save_pretrained(tmp_path / "peer")
    tokenizer_of("gpt2").save_pretrained(tmp_path / "peer")
    assert main(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "run")]) == 0
    run = anaphor.load_run(tmp_path / "run")
    assert len(run.tokenizer) == size + 4
    assert run.tokenizer.tokens[-1] == f"<{size + 3}>"
    (row,) = answer_of(["score", str(tmp_path / "run"), "The statement", "--json"])
    assert row["loss"] > 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")]) == 0
    before, after = (tmp_path / name / "model.safetensors" for name in ("peer", "exported"))
    assert before.read_bytes() == after.read_bytes()
    build_decoder("qwen2", vocab_size=2 * size, bos_token_id=0).float().save_pretrained(tmp_path / "peer")
    line = error_of(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "other")])
    assert "has 400 tokens, but the model has a vocabulary of 800" in line


def test_generation_stops_at_the_tokens_that_end_a_text(tmp_path, answer_of, capsys):
    folder = save(tmp_path / "peer", "gpt2", "gpt2")
    assert main(["convert", str(folder), "--out", str(tmp_path / "plain")]) == 0
    words = ["--prompt", "The", "--tokens", "12", "--temperature", "0"]
    whole = answer_of(["generate", str(tmp_path / "plain"), *words, "--json"])["tokens"]
    # Any token may be an end: here the one that is generated in the fourth place.
    end = whole[3]
    place = whole.index(end)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 10**9, "x"]}))
    assert main(["convert", str(folder), "--out", str(tmp_path / "run")]) == 0
    run = anaphor.load_run(tmp_path / "run")
    assert run.tokenizer.ends == (end,)
    assert answer_of(["generate", str(tmp_path / "run"), *words, "--json"])["tokens"] == whole[:place]
    several = answer_of(["generate", str(tmp_path / "run"), *words, "--samples", "2", "--json"])["samples"]
    assert [one["tokens"] for one in several] == [whole[:place]] * 2
    assert run.generate("The", tokens=12, temperature=0) == run.tokenizer.decode(whole[:place])
    prompt = run.tokenizer.decode([*run.encode("The")[0, 1:].tolist(), *whole[:place]])
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), "--prompt", prompt, "--tokens", "3", "--temperature", "0"]) == 0
    if run.encode(prompt)[0, 1:].tolist() == [*run.encode("The")[0, 1:].tolist(), *whole[:place]]:
        assert "nothing was generated: the first token was one that ends a text" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")]) == 0
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["eos_token_id"] == end


def test_look_and_python_take_a_converted_gpt2(gpt2, tmp_path):
    assert main(["look", str(gpt2 / "run"), "The statement", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "attention.html").is_file()
    run = anaphor.load_run(gpt2 / "run")
    assert len(run.hidden_states("The statement")) == 2
    assert run.tokenizer.kind == "pretrained"


def test_a_converted_run_is_evaluated_on_given_data(gpt2, tmp_path, answer_of, error_of):
    assert "converted and has no data of its own: give --data" in error_of(["evaluate", str(gpt2 / "run")])
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(f"The {split} statement is executed.\n" * 20)
    (row,) = answer_of(["evaluate", str(gpt2 / "run"), "--data", str(tmp_path), "--json"])
    assert "vocab:400" in row["signature"]


@pytest.mark.needs("web")
def test_a_report_of_a_converted_run_asks_for_no_option_that_it_lacks(gpt2, tmp_path, answer_of):
    words = ["report", str(gpt2 / "run"), "--out", str(tmp_path / "page.html"), "--device", "cpu", "--json"]
    (line,) = answer_of(words)["left_out"]
    assert line == "the inside of run: the run was converted and has no data of its own; a model of text takes --text"
    assert answer_of([*words, "--text", "The statement"])["left_out"] == []


@pytest.mark.needs("web")
def test_a_converted_run_is_shown_the_text_of_a_trained_one(tmp_path, answer_of):
    save(tmp_path / "peer", "gpt2", "gpt2", n_positions=512)
    assert main(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "converted")]) == 0
    words = "lm --data grammar --model lstm --width 8 --layers 1 --steps 1 --device cpu --no-test --json"
    assert main(["train", *words.split(), "--out", str(tmp_path / "trained")]) == 0
    out = tmp_path / "page.html"
    folders = [str(tmp_path / name) for name in ("converted", "trained")]
    assert answer_of(["report", *folders, "--out", str(out), "--device", "cpu", "--json"])["left_out"] == []
    shown = re.findall(r'POST /api/look {[^}]*"text\\":\\"(.*?)\\"', out.read_text(encoding="utf-8"))
    assert len(shown) == 2
    assert shown[0] == shown[1]


@pytest.mark.needs("studies")
def test_a_study_of_a_converted_run_is_refused_by_what_it_lacks(gpt2, tmp_path, error_of):
    line = error_of(["study", "length", "--of", str(gpt2 / "run"), "--out", str(tmp_path / "study")])
    assert "was converted and has no data of its own: --of is for runs that were trained" in line


def test_a_converted_vit_is_looked_at_on_given_images(vit, tmp_path, error_of):
    line = error_of(["look", str(vit / "run"), "--out", str(tmp_path)])
    assert "was converted and has no data of its own: give images with --image" in line


def test_what_was_converted_is_exported_byte_by_byte(gpt2, vit, tmp_path, error_of):
    for name, folder in (("gpt2", gpt2), ("vit", vit)):
        assert main(["export", str(folder / "run"), "--out", str(tmp_path / name)]) == 0
        before, after = (path / "model.safetensors" for path in (folder / "peer", tmp_path / name))
        assert before.read_bytes() == after.read_bytes()
        assert after.stat().st_mode == (tmp_path / name / "config.json").stat().st_mode
        assert main(["convert", str(tmp_path / name), "--out", str(tmp_path / f"{name}-again")]) == 0
        first, again = anaphor.load_run(folder / "run").model, anaphor.load_run(tmp_path / f"{name}-again").model
        assert first.spec == again.spec
        assert all(torch.equal(weight, again.state_dict()[key]) for key, weight in first.state_dict().items())
    exported, original = (
        json.loads((path / "tokenizer.json").read_text()) for path in (tmp_path / "gpt2", gpt2 / "peer")
    )
    assert exported == original
    assert "is not empty" in error_of(["export", str(gpt2 / "run"), "--out", str(tmp_path / "gpt2")])


def test_a_converted_vit_classifies_data_by_the_names_of_its_classes(vit, tmp_path, answer_of, error_of):
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    peer = load(vit / "peer", torch.float32)
    x = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    with torch.no_grad():
        logits = peer(x.float()).logits
    labels = ["mad", "glad", "glad"] * 2  # in folders their order is another one than in the model
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([2, 1, 1] * 2)).item()
    for split in ("train", "valid", "test"):
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            (tmp_path / split / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / split / label / f"{number}.png")
    found = answer_of(["evaluate", str(vit / "run"), "--data", str(tmp_path), "--json"])
    assert found[0]["loss"] == pytest.approx(expected, abs=1e-5)
    (tmp_path / "train" / labels[0]).rename(tmp_path / "train" / "bad")
    (tmp_path / "valid" / labels[0]).rename(tmp_path / "valid" / "bad")
    (tmp_path / "test" / labels[0]).rename(tmp_path / "test" / "bad")
    line = error_of(["evaluate", str(vit / "run"), "--data", str(tmp_path)])
    assert "the class 'bad', which the model has not" in line


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "mpnet"])
def classifier(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    kind = request.param
    family = "bert" if "bert" in kind and kind != "roberta" else "roberta"
    save(folder / "peer", kind, family)
    assert main(["convert", str(folder / "peer"), "--out", str(folder / "run")]) == 0
    return folder, family


TEXTS = ["The statement is executed.", "A class!", "naïve\tcafé 日本語 😀", "function " * 30]


def peer_probabilities(folder, family):
    """Probabilities of the texts, each by itself, truncated to the 62 or 64 positions that the models have."""
    peer = load(folder / "peer", torch.float32)
    longest = peer.config.max_position_embeddings - (0 if family == "bert" else 2)
    rows = []
    for text in TEXTS:
        given = tokenizer_of(family)(text, return_tensors="pt", truncation=True, max_length=longest)
        with torch.no_grad():
            rows.append(peer(given["input_ids"]).logits.softmax(-1)[0])
    return torch.stack(rows)


def test_a_converted_classifier_predicts_what_transformers_predicts(classifier, tmp_path, answer_of):
    folder, family = classifier
    rows = answer_of(["predict", str(folder / "run"), *TEXTS, "--json"])
    ours = torch.tensor([[row["probabilities"][name] for name in ("sad", "glad", "mad")] for row in rows])
    assert len(anaphor.load_run(folder / "run").hidden_states(TEXTS[0])) == 2
    expected = peer_probabilities(folder, family)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)

    lines = [f"{text}\t{label}" for text, label in zip(TEXTS, ("mad", "sad", "glad", "mad"), strict=True)]
    lines[2] = "a b\tglad"
    (tmp_path / "test.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    shutil.copy(tmp_path / "test.tsv", tmp_path / "train.tsv")
    shutil.copy(tmp_path / "test.tsv", tmp_path / "valid.tsv")
    found = answer_of(["evaluate", str(folder / "run"), "--data", str(tmp_path), "--json"])
    assert "classes:3" in found[0]["signature"]
    assert main(["export", str(folder / "run"), "--out", str(tmp_path / "out")]) == 0
    before, after = (path / "model.safetensors" for path in (folder / "peer", tmp_path / "out"))
    assert before.read_bytes() == after.read_bytes()


def test_pretrained_weights_are_fine_tuned_from_the_folder_itself_and_exported(tmp_path, error_of):
    save(tmp_path / "peer", "bert base", "bert")
    words = ["--data", "negation", "--max-examples", "64", "--steps", "2", "--no-test", "--lora", "2"]
    assert main(["train", "classify", "--init", str(tmp_path / "peer"), "--out", str(tmp_path / "run"), *words]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    run, peer = anaphor.load_run(tmp_path / "run"), load(tmp_path / "out", torch.float32)
    ids = run.experiment.encode("it is not good")
    with torch.no_grad():
        torch.testing.assert_close(peer(ids).logits, run.model(ids), rtol=1e-5, atol=1e-5)
    assert tuple(peer.config.id2label.values()) == run.experiment.classes
    assert main(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "headless")]) == 0
    assert "converted without a head" in error_of(["predict", str(tmp_path / "headless"), "good"])


def test_a_converted_run_cannot_be_resumed_and_is_not_overwritten_by_accident(gpt2, answer_of, error_of):
    line = error_of(["convert", str(gpt2 / "peer"), "--out", str(gpt2 / "run")])
    assert "already holds a run: replace it with --overwrite, or choose another --out" in line
    for words in ([], ["--data", "grammar"]):
        line = error_of(["train", "lm", "--resume", "--out", str(gpt2 / "run"), *words])
        assert "was converted: there is no training to resume" in line
    result = answer_of(["convert", str(gpt2 / "peer"), "--out", str(gpt2 / "run"), "--overwrite", "--json"])
    assert (result["task"], result["kind"], result["status"]) == ("lm", "gpt2", "converted")


def test_a_tokenizer_of_another_model_is_refused_with_both_sizes(gpt2, tmp_path, error_of):
    shutil.copytree(gpt2 / "peer", tmp_path / "peer")
    tokenizer = json.loads((tmp_path / "peer" / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {
            "id": 400,
            "content": "<more>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    )
    (tmp_path / "peer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    line = error_of(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "run")])
    assert "has 401 tokens, but the model has a vocabulary of 400" in line
    (tmp_path / "peer" / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in error_of(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_python_converts_and_exports(vit, tmp_path):
    run = anaphor.convert(vit / "peer", tmp_path / "run")
    assert run.experiment.metadata.classes == ("sad", "glad", "mad")
    assert run.experiment.metadata.mean == (0.5,) * 3
    files = anaphor.export(tmp_path / "run", tmp_path / "out")
    assert {path.name for path in files} == {"config.json", "model.safetensors", "preprocessor_config.json"}
    with pytest.raises(DataError, match=r"has no config\.json"):
        anaphor.convert(tmp_path / "run", tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "pixels"),
    [
        ({}, lambda x: (x / 255 - 0.4) / 0.2),
        ({"do_normalize": False}, lambda x: x / 255),
        ({"rescale_factor": 1 / 127.5}, lambda x: (x / 127.5 - 0.4) / 0.2),
        ({"do_rescale": False}, lambda x: (x - 0.4) / 0.2),
        ({"do_rescale": False, "do_normalize": False}, lambda x: x),
    ],
)
def test_images_are_prepared_as_the_folder_says(vit, tmp_path, options, pixels):
    shutil.copytree(vit / "peer", tmp_path / "peer")
    given = {"image_mean": [0.4] * 3, "image_std": [0.2] * 3, **options}
    (tmp_path / "peer" / "preprocessor_config.json").write_text(json.dumps(given))
    experiment = anaphor.convert(tmp_path / "peer", tmp_path / "run").experiment
    images = torch.randint(256, (2, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(experiment.augment.normalize(images), pixels(images.float()), rtol=1e-5, atol=1e-5)


def test_a_scale_of_pixels_that_is_no_number_is_refused(vit, tmp_path):
    shutil.copytree(vit / "peer", tmp_path / "peer")
    for factor in (0, "1/255", True):
        (tmp_path / "peer" / "preprocessor_config.json").write_text(json.dumps({"rescale_factor": factor}))
        with pytest.raises(DataError, match=r"rescale_factor must be a number above 0"):
            anaphor.convert(tmp_path / "peer", tmp_path / "run")


def test_recurrent_layers_cannot_be_exported(tmp_path, capsys):
    words = ["train", "lm", "--data", "grammar", "--model", "lstm", "--width", "8", "--steps", "1", "--no-test"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_argument_of_a_wrong_type_is_refused_in_one_line(gpt2):
    run = anaphor.load_run(gpt2 / "run", device="cpu")
    with pytest.raises(ConfigError) as refused:
        anaphor.export(run, "out")
    assert str(refused.value) == f"run={repr(run)[:79]}…: it must be a path"
