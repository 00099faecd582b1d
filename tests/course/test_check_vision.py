"""Vision transformers: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant
from course.test_check_images import PATCHES
from course.test_check_transformer import STYLES, TRANSFORMER

PARTS = TRANSFORMER + PATCHES
VIT = (
    PARTS
    + """
class ViT(nn.Module):
    def __init__(self, img_size, patch_size, in_chans, dim, attn_dim, mlp_dim, num_heads, num_layers, num_classes):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, in_chans, dim)
        num_patches = (img_size // patch_size) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches + 1, dim))
        self.transformer = Transformer(dim, attn_dim, mlp_dim, num_heads, num_layers)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        x = x + self.pos_embed
        x, A = self.transformer(x, None)
        return self.head(x[:, 0]), A
"""
)
JOIN = """        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        x = x + self.pos_embed
"""
VIT_STYLES = {
    "the sheet's": VIT,
    "positions of patches alone": plant(plant(VIT, "num_patches + 1, dim", "num_patches, dim"), JOIN, """
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x + self.pos_embed), dim=1)
"""),
    "timm's": STYLES["fused by head"] + """
class ViT(nn.Module):
    def __init__(self, image_size, patch_size, dim, depth, heads, num_classes, channels=3):
        super().__init__()
        self.patch, n = patch_size, (image_size // patch_size) ** 2
        self.to_patch = nn.Linear(channels * patch_size ** 2, dim)
        self.cls = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Embedding(n + 1, dim)
        self.blocks = nn.ModuleList([TransformerBlock(dim, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes, bias=False))

    def forward(self, images):
        x = self.to_patch(F.unfold(images, self.patch, stride=self.patch).mT)
        x = torch.cat([self.cls[None, None].repeat(len(x), 1, 1), x], 1)
        x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])
""",
    "torch's attention": STYLES["torch's own"] + """
class ViT(nn.Module):
    def __init__(self, img_size, patch_size, in_chans, dim, num_heads, num_layers, num_classes):
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.class_embedding = nn.Parameter(torch.randn(1, 1, dim))
        self.position = nn.Parameter(torch.randn((img_size // patch_size) ** 2 + 1, dim))
        self.layers = nn.ModuleList([TransformerBlock(dim, num_heads) for _ in range(num_layers)])
        self.norm, self.mlp_head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, x):
        x = torch.einsum("behw->bhwe", self.proj(x)).flatten(1, 2)
        x = torch.cat((self.class_embedding.expand(len(x), 1, -1), x), 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.mlp_head(self.norm(x)[:, 0])
""",
    "float64": plant(VIT, "nn.Linear(dim, num_classes)", "nn.Linear(dim, num_classes)\n        self.double()"),
    "without bias": plant(VIT, "nn.Linear(dim, num_classes)", "nn.Linear(dim, num_classes, bias=False)"),
}  # fmt: skip
LAST = "        x = torch.cat((x, self.cls_token.expand(len(x), -1, -1)), dim=1)\n        x = x + self.pos_embed\n"
VIT_MISTAKES = [
    (JOIN, "        x = x + self.pos_embed[:, 1:]\n", {"class-token-missing"}),
    (JOIN, LAST, {"class-token-last"}),
    ("x[:, 0]", "x[:, -1]", {"head-reads-the-last-patch"}),
    ("x[:, 0]", "x[:, 1:].mean(1)", {"head-reads-the-mean"}),
    ("x[:, 0]", "x", {"logits-of-all-tokens"}),
    (JOIN, JOIN.replace("x = x + self.pos_embed\n", "\n"), {"positions-left-out"}),
    (JOIN, JOIN.replace("x + self.pos_embed", "x * self.pos_embed"), {"positions-multiplied"}),
    (JOIN, JOIN.replace("x + self.pos_embed", "x + self.pos_embed.roll(-1, 1)"), {"positions-shifted-by-one"}),
    (JOIN, "        x = x + self.pos_embed[:, :-1]\n" + JOIN.replace("        x = x + self.pos_embed\n", ""),
     {"positions-before-class-token"}),
    (JOIN, "        x = x + self.pos_embed[:, 1:]\n" + JOIN.replace("        x = x + self.pos_embed\n", ""),
     {"class-token-without-position"}),
    (".flatten(2)", ".mT.flatten(2)", {"column-by-column"}),
    (".transpose(1, 2)\n", ".flatten(1).unflatten(1, (9, -1))\n", {"reshaped-without-transpose"}),
    ("self.proj(x)", "self.proj(x.mT)", {"image-transposed"}),
    ("self.head(x[:, 0])", "self.head(x[:, 0]).softmax(-1)", {"returns-probabilities"}),
    ("self.head(x[:, 0])", "x[:, 0]", {"head-left-out"}),
    ("/ math.sqrt(self.n_hidden)", "", {"not-scaled"}),
    ("x = x + y", "x = y", {"no-residual-after-attention"}),
    ("enumerate(self.layers)", "enumerate(self.layers[:-1])", {"last-layer-left-out"}),
    ("self.head(x[:, 0])", "2 * self.head(x[:, 0])", {"unknown"}),
    ("self.cls_token.expand", "self.cls_token.detach().expand", {"gradient"}),
    ("self.cls_token.expand(len(x), -1, -1)", "self.cls_token", {"raises"}),
]  # fmt: skip


@pytest.mark.parametrize("style", VIT_STYLES)
def test_a_right_vision_transformer_passes(style, tmp_path):
    report = check_source(tmp_path, VIT_STYLES[style], "ViT")
    assert report.passed, report.mistakes
    assert "gradient of x" in report.checked


@pytest.mark.parametrize(("old", "new", "names"), VIT_MISTAKES)
def test_a_mistake_in_a_vision_transformer_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(VIT, old, new), "ViT")) == names


PATCHING = {
    "nn.Conv2d({c}, {d}, {p}, stride={p})": "self.patches(x).flatten(2).mT",
    "nn.Conv2d({c}, {d}, {p}, {p}, bias=False)": "self.patches(x).permute(0, 2, 3, 1).reshape(len(x), -1, self.dim)",
    "nn.Linear({c} * {p} ** 2, {d})": "self.patches(F.unfold(x, self.p, stride=self.p).mT)",
}
TOKENS = ["nn.Parameter(torch.zeros(1, 1, dim))", "nn.Parameter(torch.zeros(1, dim))", "nn.Parameter(torch.zeros(dim))"]
PLACES = {
    "nn.Parameter(torch.zeros(1, n + 1, dim))": "torch.cat((cls, x), 1) + self.places",
    "nn.Parameter(torch.zeros(n + 1, dim))": "torch.cat((cls, x), 1) + self.places[None]",
    "nn.Parameter(torch.zeros(n, dim))": "torch.cat((cls, x + self.places), 1)",
    "nn.Embedding(n + 1, dim)": "torch.cat((cls, x), 1) + self.places.weight",
}
ENDS = ["nn.Linear(dim, classes)", "nn.Linear(dim, classes, bias=False)",
        "nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))"]  # fmt: skip
RETURNED = ["self.head(x[:, 0]), A", "self.head(x)[:, 0], A", "self.head(x[:, 0])", "self.head(x.select(1, 0)), A"]


@pytest.mark.slow
@given(*map(st.sampled_from, ([*PATCHING], TOKENS, [*PLACES], ENDS, RETURNED)), st.booleans(), st.booleans())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_vision_transformer_is_refused(
    tmp_path, patching, token, places, end, returned, has_few_sizes, is_double
):
    blocks = "dim, heads, layers" if has_few_sizes else "dim, attn_dim, mlp_dim, heads, layers"
    parts = PARTS
    if has_few_sizes:
        named = "dim, attn_dim, mlp_dim, num_heads, num_layers):"
        default = "dim, num_heads, num_layers):\n        attn_dim, mlp_dim = dim // num_heads, 4 * dim"
        parts = plant(parts, named, default)
    source = f"""{parts}
class ViT(nn.Module):
    def __init__(self, img, p, c, {blocks}, classes):
        super().__init__()
        self.p, self.dim, n = p, dim, (img // p) ** 2
        self.patches = {patching.format(c="c", d="dim", p="p")}
        self.cls_token, self.places = {token}, {places}
        self.transformer = Transformer({blocks})
        self.head = {end}
        {"self.double()" if is_double else ""}

    def forward(self, x):
        x = {PATCHING[patching]}
        cls = self.cls_token.reshape(1, 1, -1).expand(len(x), 1, -1)
        x, A = self.transformer({PLACES[places]}, None)
        return {returned}
"""
    report = check_source(tmp_path, source, "ViT")
    assert report.passed, (source, report.mistakes)


OWN_LAYOUT = """
class ViT(nn.Module):
    def __init__(self, img_size, patch_size, in_chans, dim, attn_dim, mlp_dim, num_heads, num_layers, num_classes):
        super().__init__()
        self.layers, self.size, self.flat = num_layers, attn_dim, nn.ParameterDict()

    def load_reference(self, weights):
        for name, value in weights.items():
            self.flat[name.replace(".", "_")] = nn.Parameter(value.flatten(1) if value.ndim > 3 else value)

    def forward(self, x):
        w = self.flat
        x = F.unfold(x, 5, stride=5).mT @ w["weight"].T + w["bias"]
        x = torch.cat((w["class"].expand(len(x), 1, -1), x), 1) + w["position"]
        for n in range(self.layers):
            y = F.layer_norm(x, x.shape[-1:], w[f"{n}_norm1_weight"], w[f"{n}_norm1_bias"])
            q, k, v = (torch.einsum("btd,hkd->bhtk", y, w[f"{n}_{c}"]) + w[f"{n}_b{c}"][:, None] for c in "qkv")
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + y @ w[f"{n}_o"].T + w[f"{n}_bo"]
            y = F.layer_norm(x, x.shape[-1:], w[f"{n}_norm2_weight"], w[f"{n}_norm2_bias"])
            x = x + F.relu(y @ w[f"{n}_w1"].T + w[f"{n}_b1"]) @ w[f"{n}_w2"].T + w[f"{n}_b2"]
        return x[:, 0] @ w["head"].T + w["head_bias"]
"""


def test_a_layout_of_its_own_takes_the_weights_by_name(tmp_path):
    assert check_source(tmp_path, OWN_LAYOUT, "ViT").passed
    wrong = check_source(tmp_path, plant(OWN_LAYOUT, "x[:, 0]", "x[:, -1]"), "ViT")
    assert names_of(wrong) == {"head-reads-the-last-patch"}
