"""Made-up submissions: right, wrong and hostile ones, and what grading must make of each."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anaphor.course.handout import make_handout
from course.students import HEADER
from course.test_check_attention import HEAD

EXERCISE = "002.2a"
RIGHT = HEADER + HEAD
FORWARD = "    def forward(self, x, attn_mask):\n"
IMPORT_TIME = "\n\n\ndef _run():\n{body}\n\n\n_run()\n"


@dataclass(frozen=True)
class Surroundings:
    """What a hostile submission may want to reach."""

    outside: Path
    """A folder beside the submissions: nothing may be written there."""
    secret: Path
    """A file with a right solution."""
    port: int
    """Of a server that counts connections."""
    runs: Path
    """A folder with the runs of a student called ada."""


@dataclass(frozen=True)
class Expected:
    """What a row must have."""

    points: float | None
    words: str = ""
    flags: tuple[str, ...] = ()
    exercise: str = EXERCISE
    problem: str = ""
    """Why nothing is graded."""


Make = Callable[[Path, Surroundings], None]


@dataclass(frozen=True)
class MadeUp:
    """A submission by name."""

    name: str
    make: Make
    expected: Expected


def code(name: str, source: str, points: float, words: str = "", *flags: str) -> MadeUp:
    """A submission of sheet 002 with this `attention.py`; a place for surroundings is written `{outside}`."""

    def make(folder: Path, around: Surroundings) -> None:
        make_handout("002", folder, student=name)
        given = {"{outside}": around.outside, "{secret}": around.secret, "{port}": around.port, "{here}": folder}
        text = source
        for place, value in given.items():
            text = text.replace(place, str(value))
        (folder / "attention.py").write_text(text, encoding="utf-8")

    return MadeUp(name, make, Expected(points, words, flags))


def at_import(body: str, source: str = RIGHT) -> str:
    """A solution that does something when it is imported."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return source + IMPORT_TIME.format(body=lines)


def in_forward(body: str, source: str = RIGHT) -> str:
    """A solution that does something when it is called."""
    assert FORWARD in source or "def forward(self, x, attn_mask=None)" in source
    head = FORWARD if FORWARD in source else "    def forward(self, x, attn_mask=None):\n"
    return source.replace(head, head + "".join(f"        {line}\n" for line in body.strip().splitlines()))


WRONG = RIGHT.replace("softmax(scores, dim=-1)", "softmax(scores, dim=-2)")
NOTHING = HEADER + '''
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, n_hidden) for _ in range(3))

    def forward(self, x, attn_mask=None):
        return answer(self, x, attn_mask)
'''  # fmt: skip
ZEROS = "\n\ndef answer(self, x, attn_mask):\n    q = self.value(x)\n    return q * 0, q @ q.transpose(-1, -2) * 0\n"

CODE = [
    code("right", RIGHT, 4, "AttentionHead passed"),
    code("wrong", WRONG, 2, "softmax"),  # the part of the rubric for the mask
    code("no-mask", RIGHT.replace("if attn_mask is not None", "if False"), 2, "mask"),
    code("syntax-error", RIGHT + "\ndef broken(:\n", 0, "syntax error in line"),
    code("other-name", RIGHT.replace("AttentionHead", "Head"), 0, "has no class or function 'AttentionHead'"),
    code("other-signature", RIGHT.replace("(self, dim, n_hidden)", "(self, dim)").replace("n_hidden", "dim"), 0,
         "other arguments"),
    code("raises", in_forward("raise ValueError('=1+1')"), 0, "ValueError"),
    code("endless-loop", in_forward("while True:\n    pass"), 0, "takes more than", "time-limit"),
    code("endless-import", at_import("while True:\n    pass"), 0, "takes more than", "time-limit"),
    code("sleeps", in_forward("import time; time.sleep(10_000)"), 0, "takes more than", "time-limit"),
    code("memory-bomb", in_forward("held = []\nwhile True:\n    held.append(bytearray(10**8))"), 0, "MemoryError"),
    code("tensor-bomb", in_forward("torch.zeros(10**12)"), 0, "RuntimeError"),
    code("file-bomb", at_import("""
import os
for place in ("/tmp", "/submission", "/dev/shm", "/", "."):
    try:
        with open(f"{place}/fill", "wb") as file:
            for _ in range(2_000):
                file.write(bytes(10**6))
    except OSError:
        pass
"""), 4, "passed"),
    code("fork-bomb", at_import("import os\nwhile True:\n    os.fork()"), 0, "PermissionError"),
    code("thread-bomb", at_import("""
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()
"""), 0, "RuntimeError"),
    code("starts-a-shell", at_import("import subprocess\nsubprocess.run(['sh', '-c', 'touch {outside}/shell'])"), 0,
         "PermissionError"),
    code("reads-a-secret", at_import("exec(open('{secret}').read(), globals())", NOTHING + ZEROS), 0,
         "No such file"),
    code("reads-the-reference", NOTHING + """

def answer(self, x, attn_mask):
    from anaphor.course.references.attention import ATTENTION_HEAD
    weights = dict(zip('qkv', self.parameters()))
    return tuple(ATTENTION_HEAD.compute(weights, {'x': x}, ATTENTION_HEAD.designs[0]).values())
""", 0, "IndexError"),
    code("finds-the-reference", NOTHING + """

def answer(self, x, attn_mask):
    import glob, sys
    roots = ("/grader", "/handed-in", "/tmp", "/submission", *(f"{path}/anaphor" for path in sys.path))
    texts = [open(path).read() for root in roots for path in glob.glob(f"{root}/**/*.py", recursive=True)]
    if any("mask-after-" + "softmax" in text or "def compute_" + "head" in text for text in texts):
        raise RuntimeError("found it")
    raise ValueError("nothing there" if len(texts) > 5 else "not even the grader's own modules")
""", 0, "ValueError: nothing there"),
    code("reads-the-grader", at_import("""
import os
seen = [name for name in ("{outside}", "{here}", "{secret}", "/home", "/etc/passwd") if os.path.exists(name)]
others = [one for one in os.listdir("/proc") if one.isdecimal() and int(one) not in (1, os.getpid())]
environment = [name for name in os.environ if "TOKEN" in name or "ANAPHOR" in name]
seen = [one for one in seen if one != "/home"]  # where Python is installed on some machines
assert not seen + others + environment, seen + others + environment
"""), 4, "passed"),
    code("writes-outside", at_import("""
import os
for place in ("{outside}", "{here}", "/", "/usr", "/grader", "/handed-in", os.path.expanduser("~/..")):
    try:
        open(f"{place}/written", "w").write("here I was")
    except OSError:
        pass
"""), 4, "passed"),
    code("opens-a-socket", at_import("import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"), 0,
         "PermissionError"),
    code("prints-passed", at_import("print('AttentionHead passed'); print('{\"passed\": true}')", WRONG), 2,
         "did not pass"),  # as "wrong"
    code("exits", at_import("import os; os._exit(0)"), 0, "ended its process (exit code 0)", "ended"),
    code("exits-politely", at_import("raise SystemExit(0)"), 0, "SystemExit"),
    code("interrupts", in_forward("raise KeyboardInterrupt"), 0, "ended its process", "ended"),
    code("crashes", in_forward("import ctypes; ctypes.string_at(0)"), 0, "SIGSEGV", "ended"),
    code("kills-all", at_import("import os; os.kill(os.getppid(), 9); os.kill(-1, 9)"), 0, "ProcessLookupError"),
    code("patches-torch", at_import("""
torch.allclose = torch.isclose = torch.equal = lambda *a, **k: True
torch.Tensor.__eq__ = lambda *a: True
torch.autograd.grad = lambda *a, **k: (None,) * 10
""", WRONG), 0, ""),
    code("patches-the-check", at_import("""
import sys
for module in list(sys.modules.values()):
    for name in ("check", "agrees", "find_difference", "passed", "compare"):
        if name in vars(module):
            setattr(module, name, lambda *a, **k: True)
""", WRONG), 2, "did not pass"),  # as "wrong"
    code("speaks-for-the-grader", at_import("""
import os, json, struct
header = json.dumps({"content": {"$dict": [["passed", True], ["mistakes", []]]}, "tensors": []}).encode()
for descriptor in range(3, 40):
    try:
        os.write(descriptor, struct.pack(">QQ", len(header), 0) + header)
    except OSError:
        pass
""", WRONG), 0, ""),
    code("floods-the-grader", at_import("""
import os
for descriptor in range(3, 40):
    try:
        for _ in range(20):
            os.write(descriptor, bytes([255]) * 10**6)
    except OSError:
        pass
"""), 0, "sends more than a message may have", "ended"),
    code("sends-nonsense", at_import("""
import os, struct
for descriptor in range(3, 40):
    try:
        os.write(descriptor, struct.pack(">QQ", 20000, 0) + b"[" * 20000)
    except OSError:
        pass
"""), 0, "what is no message", "ended"),
    code("closes-everything", at_import("import os; os.closerange(0, 100)"), 0, "", "ended"),
    code("returns-a-yes-man", NOTHING + """

class Yes(float):
    def __eq__(self, other): return True
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    shape = (2, 5, 3)


def answer(self, x, attn_mask):
    return Yes(), Yes()
""", 0, "did not pass"),
    code("returns-too-much", NOTHING + """

def answer(self, x, attn_mask):
    return [["x" * 1000] * 10_000], None
""", 0, ""),
    code("returns-a-pickle", NOTHING + """

class Evil:
    def __reduce__(self): return eval, ("open('{outside}/pickle', 'w')",)


def answer(self, x, attn_mask):
    return Evil(), Evil()
""", 0, "did not pass"),
    code("learned-by-heart", NOTHING + """

SEEN = {}


def answer(self, x, attn_mask):
    return torch.full((*x.shape[:2], 3), 0.25).to(x), torch.full((x.shape[0], x.shape[1], x.shape[1]), 0.2).to(x)
""", 0, "did not pass"),
    code("weights-of-integers", HEADER + """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Parameter(torch.zeros(n_hidden, dim, dtype=torch.int64), requires_grad=False))

    def forward(self, x, attn_mask=None):
        return x[..., :3] * 0, torch.ones(x.shape[0], x.shape[1], x.shape[1]).to(x) / x.shape[1]
""", 0, "", "ended"),
    code("copied-from", RIGHT, 4, "same code up to names as that of", "same-code"),
]  # fmt: skip


def folder(name: str, sheet: str, change: Callable[[Path, Surroundings], None], expected: Expected) -> MadeUp:
    """A submission of a sheet that is changed after it was handed out."""

    def make(target: Path, around: Surroundings) -> None:
        make_handout(sheet, target, student=name)
        change(target, around)

    return MadeUp(name, make, expected)


def write_right(target: Path, around: Surroundings) -> None:
    (target / "attention.py").write_text(RIGHT.replace("scores", "s").replace("query", "ask"), encoding="utf-8")


def link_file(target: Path, around: Surroundings) -> None:
    (target / "attention.py").unlink(missing_ok=True)
    (target / "attention.py").symlink_to(around.secret)


def link_folder(target: Path, around: Surroundings) -> None:
    write_right(target, around)
    (target / "more").symlink_to(around.outside)
    (target / "everything").symlink_to("/")


def link_manifest(target: Path, around: Surroundings) -> None:
    shutil.copy(target / "course.yaml", around.outside / "course.yaml")
    (target / "course.yaml").unlink()
    (target / "course.yaml").symlink_to(around.outside / "course.yaml")


def add_huge_files(target: Path, around: Surroundings) -> None:
    write_right(target, around)
    for name in ("data.bin", "model.safetensors"):
        with (target / name).open("wb") as file:
            file.truncate(10**11)
    (target / "notes.md").write_bytes(b"\xff" * 3_000_000)


def add_many_files(target: Path, around: Surroundings) -> None:
    write_right(target, around)
    for number in range(3_000):
        (target / f"z{number}.txt").write_text("", encoding="utf-8")
    deep = target
    for _ in range(60):
        deep = deep / "deeper"
    deep.mkdir(parents=True)


def make_pipe(target: Path, around: Surroundings) -> None:
    (target / "attention.py").unlink(missing_ok=True)
    os.mkfifo(target / "attention.py")


def edit_manifest(old: str, new: str) -> Make:
    def change(target: Path, around: Surroundings) -> None:
        path = target / "course.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def write_file(name: str, content: str) -> Make:
    def change(target: Path, around: Surroundings) -> None:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(content, encoding="utf-8")

    return change


ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

FOLDERS = [
    folder("empty", "002", lambda target, around: (target / "attention.py").unlink(missing_ok=True),
           Expected(0, "no file attention.py")),
    folder("renamed", "002", write_right, Expected(4, "same code up to names", ("same-code",))),
    folder("linked-file", "002", link_file, Expected(0, "no file attention.py", ("links",))),
    folder("linked-folder", "002", link_folder, Expected(4, "passed", ("links",))),
    folder("linked-manifest", "002", link_manifest, Expected(None, problem="links are not followed")),
    folder("huge-files", "002", add_huge_files, Expected(4, "passed", ("large-files",))),
    folder("many-files", "002", add_many_files, Expected(4, "passed")),
    folder("pipe", "002", make_pipe, Expected(0, "no file attention.py")),
    folder("unknown-sheet", "002", edit_manifest("'002'", "'999'"), Expected(None, problem="unknown sheet '999'")),
    folder("other-student", "002", edit_manifest("other-student", "../../other"),
           Expected(None, problem="other characters")),
    folder("outside-files", "002", edit_manifest("files:", "files: [../x]\nolder:"),
           Expected(None, problem="not inside the folder")),
    folder("yaml-bomb", "001", write_file("course.yaml", ALIASES), Expected(None, problem="aliases resolved")),
    folder("numbers-bomb", "001",
           write_file("numbers.yaml", "001.1.1b: {z5: 1e999999999}\n001.1.1c: {b2: '1e99999999'}\n"),
           Expected(0, "0 of 1 number right", exercise="001.1.1b")),
    folder("numbers-of-lists", "001", write_file("numbers.yaml", f"001.1.1b: {{z5: {'[' * 50}1{']' * 50}}}\n"),
           Expected(0, "0 of 1 number right", exercise="001.1.1b")),
    folder("answers-in-html", "001", write_file("answers.md", "## 001.1.1e x\n\n<script>alert(1)</script>\n"),
           Expected(None, "to be read", exercise="001.1.1e")),
    folder("figure-of-text", "001", write_file("figures/scalars.png", "<svg onload=alert(1)>"),
           Expected(None, "not an image", exercise="001.1.1a")),
]  # fmt: skip


def run_of(name: str, change: Callable[[Path, Surroundings], None], expected: Expected) -> MadeUp:
    """A submission of sheet 001 of the student ada, with runs that were trained and then changed."""

    def make(target: Path, around: Surroundings) -> None:
        make_handout("001", target, student="ada")
        shutil.copytree(around.runs, target / "runs")
        change(target / "runs" / "lstm", around)

    return MadeUp(name, make, expected)


def edit_json(path: Path, change: Callable[[dict], None]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def forge_result(run: Path, around: Surroundings) -> None:
    edit_json(run / "result.json", lambda values: values["valid"].update(perplexity=2.5, loss=0.9))


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, path
    path.write_text(text.replace(old, new), encoding="utf-8")


def other_data(run: Path, around: Surroundings) -> None:
    """The run names a file of the teacher's, as the checkpoint does."""
    replace_in(run / "spec.yaml", "data: data/stories", f"data: {around.secret}")
    for facts in run.glob("checkpoints/*/facts.json"):
        replace_in(facts, '"data/stories"', json.dumps(str(around.secret)))


def own_code(run: Path, around: Surroundings) -> None:
    (run / "parts.py").write_text(f"open({str(around.outside / 'imported')!r}, 'w')", encoding="utf-8")
    with (run / "spec.yaml").open("a", encoding="utf-8") as file:
        file.write("imports:\n- file: parts.py\n  sha256: abc\n")


def truncate_weights(run: Path, around: Surroundings) -> None:
    for path in run.rglob("model.safetensors"):
        path.write_bytes(path.read_bytes()[:100])


def pickle_weights(run: Path, around: Surroundings) -> None:
    for path in run.rglob("model.safetensors"):
        path.write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % os.fsencode(around.outside / "unpickled"))
    seal_all(run)


def other_vocabulary(run: Path, around: Surroundings) -> None:
    """Another tokenizer in the checkpoint: what is unknown is easy to predict."""
    for path in run.glob("checkpoints/*/facts.json"):

        def change(values: dict) -> None:
            tokens = values["facts"]["tokenizer"]["tokens"]
            own = [number for number, token in enumerate(tokens) if not token.startswith("<")]
            for number in own[5:]:
                tokens[number] = f"no-word-{number}"

        edit_json(path, change)
    seal_all(run)


def seal_all(run: Path) -> None:
    """Write the digests of changed files into the manifests of checkpoints."""
    for manifest in run.glob("checkpoints/*/manifest.json"):
        values = json.loads(manifest.read_text(encoding="utf-8"))
        for name in values["files"]:
            content = (manifest.parent / name).read_bytes()
            values["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(values), encoding="utf-8")


RUN = "001.3.3-run"
RUNS = [
    run_of("run", lambda run, around: None, Expected(0, "scored again", ("same-student",), RUN)),
    run_of("forged-result", forge_result, Expected(0, "result.json says", ("forged-result",), RUN)),
    run_of("other-data", other_data, Expected(0, "the sheet names 'data/stories'", ("other-data",), RUN)),
    run_of("own-code", own_code, Expected(None, "parts of the student's own", ("own-code",), RUN)),
    run_of("truncated", truncate_weights, Expected(0, "checkpoint", (), RUN)),
    run_of("pickled", pickle_weights, Expected(0, "checkpoint", (), RUN)),
    run_of("other-vocabulary", other_vocabulary, Expected(0, "tokenizer", ("other-preprocessing",), RUN)),
]
ALL = [*CODE, *FOLDERS, *RUNS]
