"""Tiny models with random weights, made and written by `transformers`, which is imported once and only by the tests."""

import contextlib
import random
import warnings
from dataclasses import dataclass
from functools import cache

import pytest
import torch

SIZES = {"small": (8, 2, 1, 12), "middle": (12, 3, 2, 20), "large": (16, 4, 3, 64)}
VOCABULARY = 40
LENGTHS = (17, 9, 1)
IMAGE = 12


@cache
def library():
    transformers = pytest.importorskip("transformers", reason="`pip install transformers` for this oracle")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@dataclass(frozen=True)
class Peer:
    """One class of `transformers`, and how its configuration calls the sizes."""

    model: str
    config: str
    names: tuple[str, str, str, str] = (
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "intermediate_size",
    )

    def build(self, size, **more):
        values = dict(zip(self.names, SIZES[size], strict=False)) | more
        if self.config != "ViTConfig":
            values = {"vocab_size": VOCABULARY} | values
        config = getattr(library(), self.config)(**values)
        torch.manual_seed(1)
        model = getattr(library(), self.model)(config).double()
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm" in name.lower() and "weight" in name), std=0.1)
        return model.eval()


DISTIL = ("dim", "n_heads", "n_layers", "hidden_dim")
GPT = ("n_embd", "n_head", "n_layer", "n_inner")
ENCODERS = {
    "bert": Peer("BertForSequenceClassification", "BertConfig"),
    "bert base": Peer("BertModel", "BertConfig"),
    "roberta": Peer("RobertaForSequenceClassification", "RobertaConfig"),
    "roberta base": Peer("RobertaModel", "RobertaConfig"),
    "distilbert": Peer("DistilBertForSequenceClassification", "DistilBertConfig", DISTIL),
    "distilbert base": Peer("DistilBertModel", "DistilBertConfig", DISTIL),
    "mpnet": Peer("MPNetForSequenceClassification", "MPNetConfig"),
    "mpnet base": Peer("MPNetModel", "MPNetConfig"),
}
GPT2 = Peer("GPT2LMHeadModel", "GPT2Config", GPT)
VIT = Peer("ViTForImageClassification", "ViTConfig")
LABELS = {"id2label": {0: "sad", 1: "glad", 2: "mad"}, "label2id": {"sad": 0, "glad": 1, "mad": 2}}
VIT_OPTIONS = {"image_size": IMAGE, "patch_size": 4, **LABELS}
GPT_OPTIONS = {"n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}


GROUPED = {
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
STATE_SPACE = {"n_groups": 1, "state_size": 6, "conv_kernel": 3, "chunk_size": 8, "head_dim": 8}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
DECODERS = {
    "llama": (Peer("LlamaForCausalLM", "LlamaConfig"), GROUPED),
    "llama with biases": (
        Peer("LlamaForCausalLM", "LlamaConfig"),
        {**GROUPED, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, tied": (Peer("LlamaForCausalLM", "LlamaConfig"), {**GROUPED, "tie_word_embeddings": True}),
    "llama 3.1": (Peer("LlamaForCausalLM", "LlamaConfig"), {**GROUPED, "rope_parameters": LLAMA3}),
    "llama, yarn": (Peer("LlamaForCausalLM", "LlamaConfig"), {**GROUPED, "rope_parameters": YARN}),
    "mistral": (Peer("MistralForCausalLM", "MistralConfig"), {**GROUPED, "sliding_window": None}),
    "qwen2": (
        Peer("Qwen2ForCausalLM", "Qwen2Config"),
        {key: value for key, value in GROUPED.items() if key != "head_dim"},
    ),
    "qwen3": (Peer("Qwen3ForCausalLM", "Qwen3Config"), {**GROUPED, "head_dim": 6}),
    "mamba2": (
        Peer("Mamba2ForCausalLM", "Mamba2Config", ("hidden_size", "num_heads", "num_hidden_layers")),
        STATE_SPACE,
    ),
}


def build_decoder(kind, size="small", **more):
    peer, options = DECODERS[kind]
    return peer.build(size, **{**options, **more})


def build(kind, size="small", **more):
    if kind == "gpt2":
        return GPT2.build(size, **{**GPT_OPTIONS, **more})
    if kind == "vit":
        return VIT.build(size, **{**VIT_OPTIONS, **more})
    return ENCODERS[kind].build(size, **{"max_position_embeddings": 64, **LABELS, **more})


def load(folder, dtype=torch.float64):
    """The model in a folder, as `transformers` reads it."""
    config = library().AutoConfig.from_pretrained(folder)
    model = getattr(library(), config.architectures[0]).from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.eval()


def inputs(kind):
    """Arguments for the peer, and for our model."""
    generator = torch.Generator().manual_seed(2)
    if kind == "vit":
        images = torch.randn(3, 3, IMAGE, IMAGE, generator=generator, dtype=torch.float64)
        return {"pixel_values": images}, (images,)
    tokens = torch.randint(3, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    lengths = torch.tensor(LENGTHS)
    valid = torch.arange(max(LENGTHS)) < lengths[:, None]
    if kind == "gpt2":
        return {"input_ids": tokens}, (tokens,)
    tokens = tokens.masked_fill(~valid, 0 if "bert" in kind and "roberta" not in kind else 1)
    return {"input_ids": tokens, "attention_mask": valid.long()}, (tokens, lengths)


@contextlib.contextmanager
def layer_outputs(model):
    """Outputs of the embedder and of every layer of our model, by a call inside the block."""
    found = []

    def keep(module, arguments, output):
        found.append(output[0] if isinstance(output, tuple) else output)

    handles = [part.register_forward_hook(keep) for part in (model.embedder, *model.blocks)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def text_for_training():
    import pydoc_data.topics

    return list(pydoc_data.topics.topics.values())[:40]


@cache
def tokenizer_of(family):
    """A small tokenizer of the form that a family has, trained here."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    options = {"vocab_size": 400, "show_progress": False}
    if family == "bert":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made.train_from_iterator(text_for_training(), trainers.WordPieceTrainer(special_tokens=special, **options))
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = ["<s>", "<pad>", "</s>", "<unk>"] if family == "roberta" else ["<|endoftext|>"]
        trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, **options)
        made.train_from_iterator(text_for_training(), trainer)
        if family == "roberta":
            made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
            names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        else:
            made.post_processor = processors.ByteLevel(trim_offsets=False)
            names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return library().PreTrainedTokenizerFast(tokenizer_object=made, **names)


def odd_strings(count=1000):
    """Strings of many scripts, white space, control characters, accents, emoji, special tokens and long runs."""
    draw = random.Random(3)
    pieces = [
        *"abcXYZ019 \t\n\r.,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
        *"äöüßéÅñçøœЖдзλΩאבجد한글日本語中文กขंि",
        *("e\u0301", "n\u0303", "\u200d", "\u200b", "\ufeff", "\u00a0", "\u2028", "\x00", "\x07", "\x1b", "\ufffd"),
        *("😀", "👩‍👩‍👧", "🏳️‍🌈", "𝔘𝔫𝔦", "\U0001f1e9\U0001f1ea", "ﬁ", "ſ", "İ", "ẞ"),
        *("[CLS]", "[SEP]", "[PAD]", "[UNK]", "<s>", "</s>", "<pad>", "<|endoftext|>", "##ing", "Ġthe"),
        *(" the ", "function", "statement", "isn't", "e.g.", "1e-10", "0x1F", "http://a.b/c?d=e", "a" * 150, "  \n  "),
    ]
    made = ["", " ", "\n", "\t\t"]
    while len(made) < count:
        made.append("".join(draw.choices(pieces, k=draw.randrange(1, 30))))
    return made
