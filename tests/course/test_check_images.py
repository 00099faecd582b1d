"""Patches of images: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant

PATCHES = """
class PatchEmbed(nn.Module):
    def __init__(self, img_size, patch_size, in_chans, embed_dim):
        super().__init__()
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)
"""
MISTAKES = [
    ("stride=patch_size", "stride=1", {"patches-overlap"}),
    ("stride=patch_size", "stride=patch_size // 2", {"patches-overlap"}),
    ("stride=patch_size", "stride=patch_size, padding=patch_size // 2", {"padded"}),
    (".transpose(1, 2)", "", {"features-before-patches"}),
    (".transpose(1, 2)", ".reshape(len(x), -1, 10)", {"reshaped-without-transpose"}),
    (".flatten(2)", ".mT.flatten(2)", {"column-by-column"}),
    (".flatten(2).transpose(1, 2)", "", {"grid-not-flattened"}),
    (".transpose(1, 2)", ".permute(2, 0, 1)", {"patches-before-batch"}),
    ("proj(x)", "proj(x.mT)", {"image-transposed"}),
    (".transpose(1, 2)", ".mean(-1)", {"patches-averaged"}),
    ("proj(x)", "proj(x.detach())", {"image-detached"}),
    ("return self", "return F.relu(self", {"unknown"}),
    ("proj(x)", "proj(x[0, 0])", {"raises"}),
]
CUTS = {
    "unfold": ("F.unfold(x, self.p, stride=self.p).mT", "C * p * p"),
    "rows": (
        "x.unflatten(2, (-1, self.p)).unflatten(4, (-1, self.p)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)",
        "C * p * p"),
    "channels last": (
        "x.unflatten(2, (-1, self.p)).unflatten(4, (-1, self.p)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)",
        "p * p * C"),
    "loops": ("torch.stack([x[:, :, i:i + self.p, j:j + self.p].flatten(1) for i in range(0, x.shape[2], self.p) "
              "for j in range(0, x.shape[3], self.p)], 1)", "C * p ** 2"),
}  # fmt: skip
LAYERS = ["nn.Linear({}, E)", "nn.Linear({}, E, bias=False)"]
NAMES = ["self, img_size, patch_size, in_chans, embed_dim", "self, a, b, c, d",
         "self, image_size, patch, channels=3, dim=10", "self, img_size, patch_size, in_channels, emb_dim"]  # fmt: skip


def test_a_convolution_passes(tmp_path):
    report = check_source(tmp_path, PATCHES, "PatchEmbed")
    assert report.passed, report.mistakes
    assert "gradient of x" in report.checked


@pytest.mark.parametrize(("old", "new", "names"), MISTAKES)
def test_a_mistake_in_patches_is_named(old, new, names, tmp_path):
    source = plant(PATCHES, old, new)
    if "relu" in new:
        source = plant(source, ".transpose(1, 2)", ".transpose(1, 2))")
    assert names_of(check_source(tmp_path, source, "PatchEmbed")) == names


@given(st.sampled_from([*CUTS]), st.sampled_from(LAYERS), st.sampled_from(NAMES), st.booleans())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_patches_are_refused(tmp_path, cut, layer, names, is_double):
    code, size = CUTS[cut]
    _, p, c, e = (name.partition("=")[0] for name in names.split(", ")[1:])
    source = f"""
class PatchEmbed(nn.Module):
    def __init__({names}):
        super().__init__()
        self.p, p, C, E = {p}, {p}, {c}, {e}
        self.layer = {layer.format(size)}{".double()" if is_double else ""}

    def forward(self, x):
        return self.layer({code})
"""
    report = check_source(tmp_path, source, "PatchEmbed")
    assert report.passed, (source, report.mistakes)
