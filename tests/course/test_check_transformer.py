"""Blocks, stacks and a language model: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant
from course.test_check_attention import MULTI_HEAD, MULTI_HEAD_STYLES

HEADS = MULTI_HEAD_STYLES["heads in a list"]
BLOCK = (
    HEADS
    + """
class FFN(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, n_hidden), nn.GELU(), nn.Linear(n_hidden, dim))

    def forward(self, x):
        return self.layers(x)

class TransformerBlock(nn.Module):
    def __init__(self, dim, attn_dim, mlp_dim, num_heads):
        super().__init__()
        self.attention = MultiHeadAttention(dim, attn_dim, num_heads)
        self.ffn = FFN(dim, mlp_dim)

    def forward(self, x, attn_mask):
        y, A = self.attention(x, attn_mask)
        x = x + y
        return x + self.ffn(x), A
"""
)
NORM_FIRST = """
class TransformerBlock(nn.Module):
    def __init__(self, d_model, n_heads, d_ff=48, dropout=0.1):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, n_heads)
        self.ln_2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        y, A = self.attn(self.ln_1(x), mask)
        x = x + y
        return x + self.mlp(self.ln_2(x))
"""
ATTENTION = MULTI_HEAD.replace("MultiHeadAttention", "Attention")
GPT_ATTENTION = MULTI_HEAD_STYLES["fused, of the output alone"].replace("MultiHeadAttention", "Attention")
FUSED = MULTI_HEAD_STYLES["fused by head"].replace("MultiHeadAttention", "Attention")
EINSUM = MULTI_HEAD_STYLES["einsum"].replace("MultiHeadAttention", "Attention")
EINSUM = plant(EINSUM, "(self, dim, n_hidden, num_heads)", "(self, dim, num_heads)")
EINSUM = plant(EINSUM, "super().__init__()", "super().__init__()\n        n_hidden = dim // num_heads")
NORM_LAST = plant(NORM_FIRST, "self.attn(self.ln_1(x), mask)", "self.attn(x, mask)")
NORM_LAST = plant(NORM_LAST, "x = x + y", "x = self.ln_1(x + y)")
NORM_LAST = plant(NORM_LAST, "x + self.mlp(self.ln_2(x))", "self.ln_2(x + self.mlp(x)), A")
WITHOUT_BIAS = plant(NORM_FIRST, "nn.ReLU()", "nn.GELU(approximate='tanh')")
WITHOUT_BIAS = plant(WITHOUT_BIAS, "d_model, d_ff)", "d_model, d_ff, bias=False)")
STYLES = {
    "the sheet's": BLOCK,
    "norm first": ATTENTION + NORM_FIRST,
    "fused by head": FUSED + NORM_FIRST,
    "einsum": EINSUM + NORM_FIRST,
    "without bias, tanh": plant(ATTENTION, "(dim, dim)", "(dim, dim, bias=False)") + WITHOUT_BIAS,
    "norm last": ATTENTION + NORM_LAST,
    "settings": GPT_ATTENTION + """
class TransformerBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(config.n_embd), Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.ModuleDict(dict(
            c_fc=nn.Linear(config.n_embd, 4 * config.n_embd), c_proj=nn.Linear(4 * config.n_embd, config.n_embd),
        ))

    def forward(self, x, mask=None):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))
""",
    "torch's own": """
class TransformerBlock(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward=40, batch_first=True, norm_first=True)

    def forward(self, x, mask=None):
        return self.layer(x, src_mask=None if mask is None else mask == 0)
""",
    "float64": plant(BLOCK, "self.ffn = FFN(dim, mlp_dim)", "self.ffn = FFN(dim, mlp_dim)\n        self.double()"),
}  # fmt: skip

ENDS = "return x + self.ffn(x), A"
MISTAKES = [
    ("x = x + y", "x = y", {"no-residual-after-attention"}),
    (ENDS, "return self.ffn(x), A", {"no-residual-after-feed-forward"}),
    ("x = x + y\n        " + ENDS, "return x + self.ffn(x + y), A", {"second-residual-from-input"}),
    ("x = x + y\n        " + ENDS, "return x + y + self.ffn(x), A", {"side-by-side"}),
    ("nn.LayerNorm(dim), nn", "nn.Identity(), nn", {"no-norm"}),
    ("nn.GELU(), ", "", {"no-activation"}),
    ("nn.Linear(n_hidden, dim))", "nn.Linear(n_hidden, dim), nn.GELU())", {"activation-twice"}),
    (ENDS, "return x, A", {"no-feed-forward"}),
    ("self.attention(x, attn_mask)", "self.attention(x, None)", {"mask-not-passed-on"}),
    ("x = x + y", "x = x.detach() + y", {"residual-detached"}),
    ("/ math.sqrt(self.n_hidden)", "", {"not-scaled"}),
    ("/ math.sqrt(self.n_hidden)", "/ math.sqrt(x.shape[-1])", {"scaled-by-model-width"}),
    ("attn_mask == 0", "attn_mask == 1", {"mask-inverted"}),
    ("dim=-1)\n        return A @ v", "dim=-2)\n        return A @ v", {"softmax-over-queries"}),
    (ENDS, "return x + 0.5 * self.ffn(x), A", {"unknown"}),
    (ENDS, "return self.nothing(x), A", {"raises"}),
]

TRANSFORMER = (
    BLOCK
    + """
class Transformer(nn.Module):
    def __init__(self, dim, attn_dim, mlp_dim, num_heads, num_layers):
        super().__init__()
        self.layers = nn.ModuleList([TransformerBlock(dim, attn_dim, mlp_dim, num_heads) for _ in range(num_layers)])

    def forward(self, x, attn_mask):
        all_maps = []
        for number, layer in enumerate(self.layers):
            x, A = layer(x, attn_mask)
            all_maps.append(A)
        return x, torch.stack(all_maps, dim=1)
"""
)
STACK = """
class Transformer(nn.Module):
    def __init__(self, d_model, n_heads, n_layers):
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(d_model, n_heads) for _ in range(n_layers))
        self.ln_f = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask)
        return self.ln_f(x)
"""
STACK_STYLES = {
    "the sheet's": TRANSFORMER,
    "with a last norm": STYLES["norm first"] + STACK,
    "fused by head": STYLES["fused by head"] + STACK,
    "torch's own": STYLES["torch's own"] + STACK,
    "without bias": STYLES["without bias, tanh"] + STACK,
    "float64": STYLES["norm first"]
    + plant(STACK, "nn.LayerNorm(d_model)", "nn.LayerNorm(d_model)\n        self.double()"),
    "maps in a list": plant(TRANSFORMER, "torch.stack(all_maps, dim=1)", "all_maps"),
}
STACK_MISTAKES = [
    ("[TransformerBlock(dim, attn_dim, mlp_dim, num_heads) for _ in range(num_layers)]",
     "[TransformerBlock(dim, attn_dim, mlp_dim, num_heads)] * num_layers", {"one-layer-repeated"}),
    ("enumerate(self.layers)", "enumerate(self.layers[:-1])", {"last-layer-left-out"}),
    ("enumerate(self.layers)", "enumerate(reversed(self.layers))", {"layers-reversed"}),
    ("enumerate(self.layers)", "enumerate(self.layers[1:])", {"first-layer-left-out"}),
    ("x, A = layer(x, attn_mask)", "x, A = layer(x, None if number else attn_mask)", {"mask-for-first-layer-only"}),
    ("x, A = layer(x, attn_mask)", "x, A = layer(x, None)", {"mask-not-passed-on"}),
    ("x, A = layer(x, attn_mask)", "out, A = layer(x, attn_mask)", {"unknown"}),
    ("torch.stack(all_maps, dim=1)", "A", {"map-of-last-layer"}),
    ("torch.stack(all_maps, dim=1)", "torch.stack(all_maps)", {"layers-before-batch"}),
    ("/ math.sqrt(self.n_hidden)", "", {"not-scaled"}),
    ("x = x + y", "x = y", {"no-residual-after-attention"}),
    ("nn.ModuleList([TransformerBlock", "list([TransformerBlock", {"modules-in-a-plain-list"}),
]  # fmt: skip

GPT = (
    TRANSFORMER
    + """
class DialogueGPT(nn.Module):
    def __init__(self, vocab_size, dim, attn_dim, mlp_dim, num_heads, num_layers, max_seq_len=1024):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.position_embedding = nn.Embedding(max_seq_len, dim)
        self.transformer = Transformer(dim, attn_dim, mlp_dim, num_heads, num_layers)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, input_ids):
        B, T = input_ids.shape
        steps = torch.arange(T, device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(steps)
        mask = torch.ones(T, T, device=x.device).tril()
        x, A = self.transformer(x, mask)
        return self.head(x), A
"""
)
GPT_STYLES = {
    "the sheet's": GPT,
    "settings": STYLES["settings"]
    + """
class DialogueGPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Parameter(torch.zeros(1, config.block_size, config.n_embd))
        self.h = nn.ModuleList([TransformerBlock(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx):
        T = idx.size(1)
        x = self.wte(idx) + self.wpe[:, :T]
        mask = torch.tril(torch.ones(T, T, dtype=torch.bool, device=idx.device))
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))
""",
    "tied": plant(
        GPT, "(dim, vocab_size)", "(dim, vocab_size)\n        self.head.weight = self.token_embedding.weight"
    ),
    "without bias": plant(GPT, "nn.Linear(dim, vocab_size)", "nn.Linear(dim, vocab_size, bias=False)"),
    "float64": plant(GPT, "nn.Linear(dim, vocab_size)", "nn.Linear(dim, vocab_size)\n        self.double()"),
}
GPT_MISTAKES = [
    ("self.transformer(x, mask)", "self.transformer(x, None)", {"no-causal-mask"}),
    (".tril()", ".triu()", {"mask-for-the-wrong-side"}),
    (".tril()", ".tril(1)", {"mask-one-too-far"}),
    ("torch.arange(T, device", "torch.arange(1, T + 1, device", {"positions-from-one"}),
    (" + self.position_embedding(steps)", "", {"positions-left-out"}),
    (" + self.position_embedding(steps)", " * self.position_embedding(steps)", {"positions-multiplied"}),
    ("self.position_embedding(steps)", "self.position_embedding(0 * steps)", {"position-of-first-for-all"}),
    ("self.position_embedding(steps)", "self.position_embedding(T - 1 - steps)", {"positions-reversed"}),
    ("return self.head(x), A", "return self.head(x).softmax(-1), A", {"returns-probabilities"}),
    ("return self.head(x), A", "return self.head(x).log_softmax(-1), A", {"returns-log-probabilities"}),
    ("return self.head(x), A", "return x, A", {"head-left-out"}),
    ("/ math.sqrt(self.n_hidden)", "", {"not-scaled"}),
    ("return self.head(x), A", "return 2 * self.head(x), A", {"unknown"}),
]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_right_block_passes(style, tmp_path):
    report = check_source(tmp_path, STYLES[style], "TransformerBlock")
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("old", "new", "names"), MISTAKES)
def test_a_mistake_in_a_block_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(BLOCK, old, new), "TransformerBlock")) == names


@pytest.mark.parametrize("style", STACK_STYLES)
def test_a_right_stack_passes(style, tmp_path):
    report = check_source(tmp_path, STACK_STYLES[style], "Transformer")
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("old", "new", "names"), STACK_MISTAKES)
def test_a_mistake_in_a_stack_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(TRANSFORMER, old, new), "Transformer")) == names


@pytest.mark.parametrize("style", GPT_STYLES)
def test_a_right_language_model_passes(style, tmp_path):
    report = check_source(tmp_path, GPT_STYLES[style], "DialogueGPT")
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("old", "new", "names"), GPT_MISTAKES)
def test_a_mistake_in_a_language_model_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(GPT, old, new), "DialogueGPT")) == names


def model_of(choices):
    """A right language model whose parts have one of many styles."""
    bias, (one, two) = choices["bias"], choices["names"]
    first, last = {
        "first": (f"self.{one}(x)", f"x = x + y\n        x = x + self.ff(self.{two}(x))"),
        "last": ("x", f"x = self.{one}(x + y)\n        x = self.{two}(x + self.ff(x))"),
    }[choices["place"]]
    return f"""{MULTI_HEAD_STYLES[choices["attention"]]}
class Feed(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.up, self.down = nn.Linear(dim, inner, bias={bias}), nn.Linear(inner, dim)

    def forward(self, x):
        return self.down({choices["activation"]}(self.up(x)))

class TransformerBlock(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.{one}, self.{two} = nn.LayerNorm(dim, bias={bias}), nn.LayerNorm(dim, eps=1e-6)
        self.att = MultiHeadAttention(dim, num_heads)
        self.ff = Feed(dim, {choices["inner"]})

    def forward(self, x, mask=None):
        y, A = self.att({first}, mask)
        {last}
        return x, A

class Transformer(nn.Module):
    def __init__(self, dim, num_heads, num_layers):
        super().__init__()
        self.{choices["stack"]} = nn.ModuleList([TransformerBlock(dim, num_heads) for _ in range(num_layers)])
        self.end = nn.LayerNorm(dim) if {choices["end"]} else nn.Identity()

    def forward(self, x, mask=None):
        maps = []
        for one in self.{choices["stack"]}:
            x, A = one(x, mask)
            maps.append(A)
        return self.end(x), torch.stack(maps, 1)

class DialogueGPT(nn.Module):
    def __init__(self, vocab_size, dim, num_heads, num_layers, max_seq_len):
        super().__init__()
        self.model = Transformer(dim, num_heads, num_layers)
        self.words, self.places = nn.Embedding(vocab_size, dim), nn.Embedding(max_seq_len, dim)
        self.last = nn.Linear(dim, vocab_size, bias={bias})

    def forward(self, ids):
        T = ids.shape[1]
        x = self.words(ids) + self.places.weight[:T]
        x, A = self.model(x, torch.ones(T, T, device=x.device).tril())
        return self.last(x), A
"""


CHOICES = {
    "attention": ["linear", "torch's own", "names that say nothing", "fused by head"],
    "bias": [True, False],
    "names": [("norm1", "norm2"), ("ln_1", "ln_2"), ("before", "after"), ("attn_norm", "ffn_norm")],
    "place": ["first", "last"],
    "activation": ["F.relu", "F.gelu", "torch.relu", "nn.GELU('tanh')"],
    "inner": ["4 * dim", "14", "60"],
    "stack": ["layers", "blocks", "h", "encoder2"],
    "end": [True, False],
}
RIGHT_MODELS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MultiHeadAttention", "TransformerBlock", "Transformer", "DialogueGPT"])
@given(choices=RIGHT_MODELS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_model_is_refused(name, tmp_path, choices):
    report = check_source(tmp_path, model_of(choices), name)
    assert report.passed, (model_of(choices), report.mistakes)
