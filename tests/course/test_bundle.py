"""Bundles: what is in them, for which machines, what is resumed and refused; and the room where one is installed."""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from anaphor.cli.main import main
from anaphor.course.bundling import bundle as bundling
from anaphor.course.bundling import wheels as fetching
from anaphor.course.bundling.bundle import ROOM
from anaphor.course.bundling.own_wheel import find_distribution, write_own_wheel
from anaphor.course.bundling.target import PLATFORMS, Target, choose_targets, this_platform, this_python
from anaphor.course.bundling.wheels import WheelFile, collect_wheels, explain, pin
from anaphor.errors import ConfigError, DataError
from course.test_check_command import refusal

HERE = Target(this_platform(), this_python())
MAC = Target("macos-arm64", "3.12")
ROOT = Path(__file__).parents[2]


def write_wheel(folder, name, number, *requires, tag="py3-none-any"):
    """A wheel without content."""
    stem = f"{name.replace('-', '_')}-{number}"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
        needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{needs}")
        wheel.writestr(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def direct_needs():
    needs = map(Requirement, find_distribution().requires or ())
    return sorted({one.name.lower() for one in needs if one.marker is None})


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Stand-ins for all wheels in place of an index, of the installed versions; one needs another, on a Mac only."""
    folder = tmp_path / "house"
    folder.mkdir()
    for name in (*direct_needs(), "pip"):
        needs = ['tqdm>=4; sys_platform == "darwin"'] if name == "nltk" else []
        write_wheel(folder, name, version(name), *needs)
    write_wheel(folder, "tqdm", version("tqdm"))
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(folder)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


@pytest.fixture
def asked(house, monkeypatch):
    """Copies of stand-ins in place of pip, and what it was asked for."""
    asked = []

    def fetch(requirements, target, folder, report):
        for one in requirements:
            wheel = WheelFile.find(house, one, target)
            if wheel is None:
                raise DataError(explain([f"ERROR: No matching distribution found for {one}"], target))
            shutil.copy(wheel.path, folder)
            asked.append(wheel.name)

    monkeypatch.setattr(fetching, "fetch", fetch)
    return asked


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Small stand-ins for what takes time: the encoder that is trained, and all pages."""

    def train_encoder(folder):
        folder.mkdir(exist_ok=True)
        (folder / "spec.yaml").write_text("task: classify\n", encoding="utf-8")

    monkeypatch.setattr(bundling, "train_encoder", train_encoder)
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.html").write_text("<h1>Anaphor</h1>", encoding="utf-8")
    data = tmp_path / "sets" / "mini"
    data.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return ["--docs", str(pages), "--data", "none"]


def refused_later(code, capsys):
    """The one line of a command that was refused after it had begun."""
    assert code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = [line for line in printed.err.splitlines() if line.startswith("anaphor: ")]
    return line


def unpack(path, folder):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder / path.stem


def test_a_bundle_has_the_installed_versions_and_everything_a_room_needs(house, quick, tmp_path, capsys):
    assert main(["bundle", "--out", "course.zip", "--json", *quick]) == 0
    facts = json.loads(capsys.readouterr().out)
    course = unpack(tmp_path / "course.zip", tmp_path / "room")
    manifest = json.loads((course / "bundle.json").read_text(encoding="utf-8"))
    assert (facts["platforms"], facts["pythons"]) == ([this_platform()], [this_python()])
    assert facts["bytes"] == (tmp_path / "course.zip").stat().st_size
    names = {name.partition("-")[0].replace("_", "-"): name.split("-")[1] for name in facts["wheels"]}
    assert names.pop("anaphor") == find_distribution().version
    assert names == {name: version(name) for name in (*direct_needs(), "pip")}
    files = {path.relative_to(course).as_posix() for path in course.rglob("*") if path.is_file()}
    assert files == {"bundle.json", *manifest["sha256"]}
    assert {"README.md", "install.sh", "install.bat", "install.py", "docs/index.html", "encoder/spec.yaml"} <= files
    assert "examples/echo.py" in files
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((course / name).read_bytes()).hexdigest() == digest
    assert "docs/index.html" in (course / "README.md").read_text(encoding="utf-8")
    texts = {path.name: path.read_text(encoding="utf-8") for path in course.glob("[iR]*") if path.is_file()}
    assert not [name for name, text in texts.items() if re.search("@[A-Z]+@", text)], "every value is filled in"
    assert b"\r\n" in (course / "install.bat").read_bytes()
    assert not [path.name for path in tmp_path.glob("course.zip.*")]


def test_small_data_are_where_anaphor_finds_them(asked, quick, tmp_path, monkeypatch, capsys):
    text = "a b c\n" * 20
    digest = hashlib.sha256(text.encode()).hexdigest()
    from anaphor.data import download

    upstream = download.Upstream(file="input.txt", url="", sha256=digest, bytes=len(text))
    monkeypatch.setitem(
        download.load_upstream(), "tinyshakespeare", {"input.txt": download.NamedFile("tinyshakespeare", upstream)}
    )
    (tmp_path / "sets" / "tinyshakespeare").mkdir()
    (tmp_path / "sets" / "tinyshakespeare" / "input.txt").write_text(text, encoding="utf-8")
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path / "sets"))
    assert main(["bundle", "--out", "course.zip", *quick[:2], "--data", "tinyshakespeare"]) == 0
    assert "data sets: tinyshakespeare" in capsys.readouterr().out
    course = unpack(tmp_path / "course.zip", tmp_path / "room")
    monkeypatch.setenv("ANAPHOR_DATA", str(course / "data"))
    assert main(["data", "where", "tinyshakespeare", "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["path"] == str(course / "data" / "tinyshakespeare" / "input.txt")
    assert "public domain" in (course / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("target", "is_mac"), [(HERE, False), (MAC, True)])
def test_markers_are_about_the_machine_of_the_bundle(target, is_mac, asked, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_own_wheel(folder)
    found = collect_wheels([Requirement("anaphor")], target, folder, report=lambda line: None)
    assert ("tqdm" in [wheel.name for wheel in found]) == is_mac


def test_a_target_takes_the_wheels_that_run_there(tmp_path):
    for tag in ("cp312-cp312-macosx_14_0_arm64", "cp312-cp312-macosx_10_13_universal2", "cp310-abi3-macosx_11_0_arm64",
                "cp312-cp312-manylinux_2_28_x86_64", "cp312-cp312-manylinux2014_x86_64", "cp311-cp311-linux_x86_64",
                "cp312-cp312-win_amd64", "py3-none-any"):  # fmt: skip
        write_wheel(tmp_path, "torch", "2.13.0", tag=tag)
        (path,) = tmp_path.glob("*.whl")
        runs = {
            f"{target.platform} {target.python}"
            for target in choose_targets(tuple(PLATFORMS), ("3.11", "3.12"))
            if WheelFile.find(tmp_path, Requirement("torch"), target) is not None
        }
        path.unlink()
        pythons = {"abi3": {"3.11", "3.12"}, "none": {"3.11", "3.12"}, "cp311": {"3.11"}, "cp312": {"3.12"}}
        _, abi, system = tag.split("-")
        places = {"any": PLATFORMS, "amd64": ()}.get(system.rpartition("_")[2])
        if places is None:
            places = ["macos-arm64"] if system.startswith("macosx") else ["linux-x86_64"]
        assert runs == {f"{place} {python}" for place in places for python in pythons[abi]}, tag


def test_the_installed_version_is_taken_where_it_may_be():
    number = version("numpy")
    assert str(pin(Requirement("numpy>=1"), HERE)) == f"numpy=={number}"
    assert str(pin(Requirement("numpy<1"), HERE)) == "numpy<1"
    assert str(pin(Requirement("not-installed[x]>=2"), HERE)) == "not-installed[x]>=2"
    assert "+" not in str(pin(Requirement("torch"), MAC)), "a build for another machine has no name of ours"


def test_an_interrupted_bundle_goes_on_where_it_was(asked, house, quick, tmp_path, capsys):
    missing = next(house.glob("uvicorn-*"))
    hidden = missing.rename(tmp_path / missing.name)
    words = ["bundle", "--out", "course.zip", *quick]
    assert "pip finds no uvicorn" in refused_later(main(words), capsys)
    assert not (tmp_path / "course.zip").exists()
    before = [*asked]
    asked.clear()
    hidden.rename(missing)
    assert main(words) == 0
    assert len(before) > 10
    assert asked == ["uvicorn"]
    capsys.readouterr()
    assert "--overwrite" in refusal(main(words), capsys)
    old = (tmp_path / "course.zip").read_bytes()
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "course.zip").read_bytes() == old, "the same content makes the same bytes"


def test_a_full_disk_leaves_no_half_of_a_bundle(asked, quick, tmp_path, monkeypatch, capsys):
    def full(source, target, length=0):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundling.shutil, "copyfileobj", full)
    line = refused_later(main(["bundle", "--out", "course.zip", *quick]), capsys)
    assert "it needs" in line
    assert "are free" in line
    assert [path.name for path in tmp_path.glob("course.zip*")] == ["course.zip.partial"], "wheels are kept"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--out course.zip"),
        (["--out", "course.tar"], "must be a .zip file"),
        (["--out", "a_folder.zip"], "is a folder"),
        (["--out", "course.zip", "--platform", "linux-x86"], "did you mean 'linux-x86_64'"),
        (["--out", "course.zip", "--platform", "windows"], "WSL2"),
        (["--out", "course.zip", "--python", "3.2"], "unknown Python '3.2'"),
        (["--out", "course.zip", "--packages", "jupyter lab"], "'jupyter lab' is not the name of a package"),
        (["--out", "course.zip", "--data", "wikitext"], "did you mean 'wikitext-2'"),
        (["--out", "course.zip", "--data", "negation"], "built in"),
        (["--out", "a_file/course.zip"], "cannot be written to"),
    ],
)
def test_what_cannot_be_bundled_is_one_line(words, message, asked, quick, tmp_path, capsys):
    (tmp_path / "a_folder.zip").mkdir()
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    assert message in refusal(main(["bundle", *words]), capsys)
    assert asked == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError(...)'",
          "ERROR: No matching distribution found for numpy==2.4.6"], "pip cannot reach its index for numpy==2.4.6"),
        (["ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)",
          "ERROR: No matching distribution found for torch==2.13.0"], "pip finds no torch==2.13.0 for macos-arm64"),
        (["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"], "disk is full"),
        (["error: subprocess-exited-with-error", "ERROR: Failed building wheel for x"], "Failed building wheel for x"),
        ([], "it printed nothing"),
    ],
)  # fmt: skip
def test_what_pip_says_becomes_one_line(lines, message):
    line = explain(lines, MAC)
    assert message in line
    assert "\n" not in line


def test_a_version_that_another_package_does_not_allow_is_one_line(tmp_path):
    write_wheel(tmp_path, "first", "1", "second", "third")
    write_wheel(tmp_path, "second", "1")
    write_wheel(tmp_path, "third", "1", "second>=2")
    with pytest.raises(ConfigError, match="second>=2 is needed, and second 1"):
        collect_wheels([Requirement("first")], HERE, tmp_path, report=lambda line: None)


@pytest.fixture
def room(tmp_path):
    """An unpacked bundle without wheels."""
    folder = tmp_path / "course"
    (folder / "docs").mkdir(parents=True)
    shutil.copy(ROOM / "install.py", folder)
    (folder / "docs" / "index.md").write_text("# Anaphor\n", encoding="utf-8")
    digests = {"docs/index.md": hashlib.sha256(b"# Anaphor\n").hexdigest()}
    write_manifest(folder, sha256=digests)
    return folder


def write_manifest(folder, **facts):
    path = folder / "bundle.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    new = {"pythons": [this_python()], "platforms": ["here"], "wheels": [], "install": [], **old, **facts}
    path.write_text(json.dumps(new), encoding="utf-8")


def install(room, *words):
    done = subprocess.run(
        [sys.executable, "install.py", *words], cwd=room, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def spoil_page(room):
    (room / "docs" / "index.md").write_text("# Anaphora\n", encoding="utf-8")


def other_folder(room):
    (room / "venv").mkdir()
    (room / "venv" / "mine").write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda room: (room / "bundle.json").write_text("{", encoding="utf-8"), "bundle.json is missing or damaged"),
        (lambda room: write_manifest(room, pythons=["3.2"]), "the bundle is for 3.2"),
        (lambda room: (room / "docs" / "index.md").unlink(), "docs/index.md is missing"),
        (spoil_page, "docs/index.md is damaged"),
        (other_folder, "is no virtual environment"),
    ],
)
def test_what_a_room_cannot_install_is_one_line(change, message, room):
    change(room)
    code, printed = install(room)
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 1
    assert not (room / "venv" / "bin").exists()


@pytest.mark.slow
def test_a_room_without_a_network_is_set_up_by_one_command(tmp_path):
    """The real wheels of what is installed here; needs an index, as the bundle itself does."""
    made = subprocess.run(
        [sys.executable, "-m", "anaphor", "bundle", "--out", "course.zip", "--data", "none", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    assert f"torch-{version('torch')}" in " ".join(json.loads(made.stdout)["wheels"])
    course = unpack(tmp_path / "course.zip", tmp_path)
    closed = ["bwrap", "--dev-bind", "/", "/", "--unshare-net"]
    has_bwrap = shutil.which("bwrap") and subprocess.run([*closed, "true"], check=False).returncode == 0
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    plain |= {"PIP_NO_INDEX": "1", "OMP_NUM_THREADS": "1"}

    def run(*words):
        done = subprocess.run(
            [*(closed if has_bwrap else []), *words],
            cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    assert "installed" in run("sh", str(course / "install.sh"), str(tmp_path / "venv"))
    command = str(tmp_path / "venv" / "bin" / "anaphor")
    assert "usage: anaphor" in run(command, "--help")
    run(command, "train", "lm", "--data", "grammar", "--steps", "2", "--no-test", "--device", "cpu", "--out", "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["steps"] == 2
    run(command, "handout", "004", "--student", "ada", "--out", "sheet")
    fine = ["--init", str(course / "encoder"), "--data", "sheet/data/reviews", "--steps", "2", "--no-test"]
    run(command, "train", "classify", *fine, "--device", "cpu", "--out", "fine")


@pytest.mark.slow
def test_our_own_wheel_has_the_files_of_the_one_that_hatchling_builds(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: `pip install -e '.[test]'`")
    words = ["wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "built"), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (built,) = (tmp_path / "built").glob("*.whl")
    (tmp_path / "own").mkdir()
    own = write_own_wheel(tmp_path / "own")
    assert {*zipfile.ZipFile(own).namelist()} == {*zipfile.ZipFile(built).namelist()}
