"""Functions of the courses' scripts: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant

RIGHT = {
    "batchify": """
def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous()
""",
    "get_batch": """
def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    data = source[i:i + seq_len]
    target = source[i + 1:i + 1 + seq_len].view(-1)
    return data, target
""",
    "DialogueLoss": """
class DialogueLoss(nn.Module):
    def forward(self, logits, input_ids, input_mask):
        targets = input_ids[:, 1:]
        losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
        mask = input_mask[:, 1:]
        return (losses * mask).sum() / mask.sum()
""",
    "bleu": """
from collections import Counter

def count(tokens, n):
    return Counter(tuple(tokens[i:i + n]) for i in range(len(tokens) - n + 1))

def bleu(references, hypotheses):
    R = H = 0
    product = 1.0
    for refs, hyp in zip(references, hypotheses):
        H += len(hyp)
        R += min((abs(len(ref) - len(hyp)), len(ref)) for ref in refs)[1]
    for n in range(1, 5):
        a = b = 0
        for refs, hyp in zip(references, hypotheses):
            found = count(hyp, n)
            b += max(1, sum(found.values()))
            for gram, c in found.items():
                a += min(c, max(count(ref, n)[gram] for ref in refs))
        product *= a / b
    return min(1, math.exp(1 - R / H)) * product ** 0.25
""",
}
STYLES = [
    ("batchify", "def batchify(text, batch_size):\n    n = len(text) // batch_size\n"
     "    return torch.stack([text[k * n:(k + 1) * n] for k in range(batch_size)], dim=1)\n"),
    ("batchify", "def batchify(a, b):\n    return a[: len(a) // b * b].reshape(b, len(a) // b).transpose(0, 1)\n"),
    ("batchify", "def batchify(data, bsz):\n    n = len(data) // bsz\n"
     "    return [[int(data[c * n + t]) for c in range(bsz)] for t in range(n)]\n"),
    ("get_batch", "def get_batch(source, i, bptt=35):\n    end = min(i + bptt, len(source) - 1)\n"
     "    return source[i:end], source[i + 1:end + 1]\n"),
    ("get_batch", "def get_batch(data, start, size):\n    x = data[start:start + size][: len(data) - 1 - start]\n"
     "    return x, torch.stack([data[start + 1 + k] for k in range(len(x))]).flatten()\n"),
    ("get_batch", "def get_batch(bptt, source, i):\n    n = min(bptt, source.shape[0] - i - 1)\n"
     "    return [source[i:i + n], source[i + 1:i + n + 1].reshape(-1)]\n"),
    ("DialogueLoss", "def DialogueLoss(logits, targets, mask):\n"
     "    ids = targets[:, 1:].masked_fill(~mask[:, 1:], -100)\n"
     "    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids.flatten(), ignore_index=-100)\n"),
    ("DialogueLoss", "class DialogueLoss:\n    def __call__(self, logits, ids, mask):\n"
     "        keep = mask[:, 1:].bool()\n        log = logits.log_softmax(-1)[:, :-1][keep]\n"
     "        return -log.gather(1, ids[:, 1:][keep][:, None]).mean()\n"),
    ("DialogueLoss", "class DialogueLoss(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
     "        self.loss = nn.CrossEntropyLoss()\n    def forward(self, output, inp_ids, inp_mask):\n"
     "        real = inp_mask[:, 1:] == 1\n        return self.loss(output[:, :-1][real], inp_ids[:, 1:][real])\n"),
    ("bleu", "from nltk.translate.bleu_score import corpus_bleu\n\ndef bleu(refs, hyps):\n"
     "    return 100 * corpus_bleu(refs, hyps)\n"),
    ("bleu", plant(RIGHT["bleu"], "bleu(references, hypotheses)", "bleu(hypotheses, references)")),
    ("bleu", plant(RIGHT["bleu"], "return min(", "return 100 * min(")),
]  # fmt: skip
CLIPPED = "min(c, max(count(ref, n)[gram] for ref in refs))"
LENGTH = "R += min((abs(len(ref) - len(hyp)), len(ref)) for ref in refs)[1]"
AVERAGE = "(losses * mask).sum() / mask.sum()"
MISTAKES = [
    ("batchify", ".t().contiguous()", "", "batch-and-time-swapped"),
    ("batchify", "data.view(bsz, -1).t()", "data.view(-1, bsz)", "reshaped-without-transpose"),
    ("batchify", "data.view(bsz, -1).t()", "data.view(-1, bsz).t()", "reshaped-to-rows"),
    ("batchify", "data.size(0) // bsz", "(data.size(0) - 1) // bsz", "one-token-lost"),
    ("batchify", "narrow(0, 0,", "narrow(0, len(data) - nbatch * bsz,", "rest-cut-from-the-start"),
    ("batchify", "view(bsz, -1).t()", "view(bsz, -1).flip(0).t()", "columns-reversed"),
    ("batchify", "return data", "return data.flip(0)", "unknown"),
    ("batchify", "bsz, -1", "bsz, 2", "raises"),
    ("batchify", "view(bsz, -1).t()", "view(bsz, -1).t().flip(0)", "text-reversed"),
    ("get_batch", "i + 1:i + 1 + seq_len", "i:i + seq_len", "targets-not-shifted"),
    ("get_batch", "i + 1:i + 1 + seq_len", "i + 2:i + 2 + seq_len", "targets-shifted-twice"),
    ("get_batch", "len(source) - 1 - i", "len(source) - i", "last-step-without-target"),
    ("get_batch", "len(source) - 1 - i", "len(source) - 2 - i", "last-segment-one-step-lost"),
    ("get_batch", "min(bptt, len(source) - 1 - i)", "min(bptt, len(source) - 1 - i) - 1", "one-step-lost"),
    ("get_batch", "min(bptt,", "min(bptt + 1,", "one-step-too-many"),
    ("get_batch", ".view(-1)", ".t().reshape(-1)", "targets-by-column"),
    ("get_batch", "return data, target", "return target, data", "targets-first"),
    ("get_batch", "return data, target", "return data.t(), target", "batch-first"),
    ("get_batch", "return data, target", "return data + 1, target", "unknown"),
    ("DialogueLoss", "input_ids[:, 1:]", "input_ids[:, :-1]", {"unknown"}),
    ("DialogueLoss", "logits[:, :-1]", "logits[:, 1:]", "logits-not-shifted"),
    ("DialogueLoss", "input_mask[:, 1:]", "input_mask[:, :-1]", "mask-not-shifted"),
    ("DialogueLoss", "input_mask[:, 1:]", "torch.ones_like(targets)", "padding-counted"),
    ("DialogueLoss", AVERAGE, "(losses * mask).mean()", "averaged-over-padding"),
    ("DialogueLoss", AVERAGE, "((losses * mask).sum(1) / mask.sum(1)).mean()", "mean-of-rows"),
    ("DialogueLoss", " / mask.sum()", "", "summed"),
    ("DialogueLoss", " / mask.sum()", " / len(mask)", "divided-by-rows"),
    ("DialogueLoss", " / mask.sum()", " / input_mask.sum()", "divided-by-inputs"),
    ("DialogueLoss", "logits[:, :-1]", "logits[:, :-1].softmax(-1)", "softmax-before-loss"),
    ("DialogueLoss", "return (", "return -(", "negative"),
    ("DialogueLoss", "return (losses * mask)", "return (losses * mask).detach()", {"no-gradient"}),
    ("bleu", "min(1, math.exp(1 - R / H)) * ", "", "no-brevity-penalty"),
    ("bleu", "1 - R / H", "1 - H / R", "brevity-penalty-inverted"),
    ("bleu", "min(1, math.exp(1 - R / H))", "math.exp(1 - R / H)", "brevity-penalty-not-limited"),
    ("bleu", "min(1, math.exp(1 - R / H))", "min(1, H / R)", "brevity-penalty-as-ratio"),
    ("bleu", CLIPPED, "c * any(count(ref, n)[gram] for ref in refs)", "counts-not-clipped"),
    ("bleu", "min(c, max(", "min(1, max(", "clipped-at-one"),
    ("bleu", "min(c, max(", "min(c, sum(", "clipped-by-the-sum"),
    ("bleu", "for ref in refs))", "for ref in refs[:1]))", "first-reference-only"),
    ("bleu", LENGTH, "R += min(map(len, refs))", "shortest-reference"),
    ("bleu", LENGTH, "R += len(refs[0])", "length-of-first-reference"),
    ("bleu", "product ** 0.25", "product", "product-without-root"),
    ("bleu", "range(1, 5)", "range(1, 2)", {"unknown"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [*RIGHT.items(), *STYLES])
def test_a_right_function_passes(name, source, tmp_path):
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("name", "old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_a_function_is_named(name, old, new, mistake, tmp_path):
    expected = mistake if isinstance(mistake, set) else {mistake}
    assert names_of(check_source(tmp_path, plant(RIGHT[name], old, new), name)) == expected


def test_the_gradient_of_a_loss_is_compared(tmp_path):
    report = check_source(tmp_path, RIGHT["DialogueLoss"], "DialogueLoss")
    assert "gradient of logits" in report.checked


CUTS = [
    "data[: n * bsz]",
    "data.narrow(0, 0, n * bsz)",
    "data[: len(data) - len(data) % bsz]",
    "data.split(n * bsz)[0]",
]
TURNS = ["{}.view(bsz, n).t()", "{}.reshape(bsz, -1).T.contiguous()", "torch.stack({}.chunk(bsz), 1)",
         "{}.unflatten(0, (bsz, n)).permute(1, 0)", "torch.stack({}.split(n)).mT"]  # fmt: skip
LENGTHS = ["min(bptt, len(source) - 1 - i)", "min(i + bptt, source.size(0) - 1) - i", "len(source[i + 1:i + 1 + bptt])"]
TARGETS = ["source[i + 1:i + 1 + n].reshape(-1)", "source[i + 1:i + 1 + n]", "source[1:][i:i + n].flatten()",
           "source.roll(-1, 0)[i:i + n].flatten()"]  # fmt: skip
PICKS = ["F.cross_entropy(o.flatten(0, 1), t.flatten(), reduction='none').view(t.shape)",
         "-o.log_softmax(-1).gather(-1, t[..., None])[..., 0]",
         "torch.logsumexp(o, -1) - o.gather(-1, t[..., None]).squeeze(-1)",
         "F.nll_loss(F.log_softmax(o, 2).mT, t, reduction='none')"]  # fmt: skip
MEANS = ["(l * m).sum() / m.sum()", "l[m == 1].mean()", "torch.where(m > 0, l, 0).sum() / (m > 0).sum()"]


@given(st.sampled_from(CUTS), st.sampled_from(TURNS), st.sampled_from(LENGTHS), st.sampled_from(TARGETS))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_batches_are_refused(tmp_path, cut, turn, length, target):
    source = f"def batchify(data, bsz):\n    n = len(data) // bsz\n    return {turn.format(f'{cut}')}\n"
    assert check_source(tmp_path, source, "batchify").passed, source
    source = f"def get_batch(source, i, bptt):\n    n = {length}\n    return source[i:i + n], {target}\n"
    assert check_source(tmp_path, source, "get_batch").passed, source


@given(st.sampled_from(PICKS), st.sampled_from(MEANS), st.sampled_from(["class", "function"]))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_loss_is_refused(tmp_path, pick, mean, kind):
    body = f"    o, t, m = logits[:, :-1], ids[:, 1:], mask[:, 1:]\n    l = {pick}\n    return {mean}\n"
    source = f"def DialogueLoss(logits, ids, mask):\n{body}"
    if kind == "class":
        source = f"def loss(logits, ids, mask):\n{body}\nclass DialogueLoss(nn.Module):\n"
        source += "    def forward(self, logits, ids, mask):\n        return loss(logits, ids, mask)\n"
    assert check_source(tmp_path, source, "DialogueLoss").passed, source


COUNTS = ["Counter(tuple(x[i:i + n]) for i in range(len(x) - n + 1))", "Counter(zip(*[x[k:] for k in range(n)]))",
          "Counter(' '.join(x[i:i + n]) for i in range(len(x)) if i + n <= len(x))"]  # fmt: skip
ROOTS = ["math.exp(sum(map(math.log, p)) / 4)", "math.prod(p) ** (1 / 4)", "float(torch.tensor(p).log().mean().exp())"]
PENALTIES = [
    "min(1.0, math.exp(1 - R / H))",
    "(1.0 if H >= R else math.exp(1 - R / H))",
    "math.exp(-max(0, R / H - 1))",
]
SCALES = ["1", "100", "1.0"]


@given(*map(st.sampled_from, (COUNTS, ROOTS, PENALTIES, SCALES)))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_bleu_is_refused(tmp_path, count, root, penalty, scale):
    source = f"""
from collections import Counter

def grams(x, n):
    return {count}

def bleu(references, hypotheses):
    p = []
    for n in (1, 2, 3, 4):
        a = b = 0
        for refs, hyp in zip(references, hypotheses):
            best = Counter()
            for ref in refs:
                best |= grams(ref, n)
            a += (grams(hyp, n) & best).total()
            b += max(len(hyp) - n + 1, 1)
        p.append(a / b)
    H = sum(map(len, hypotheses))
    R = sum(min(map(len, refs), key=lambda n: abs(n - len(h))) for refs, h in zip(references, hypotheses))
    return {scale} * {penalty} * {root}
"""
    assert check_source(tmp_path, source, "bleu").passed, source
