"""Install Anaphor from this folder, without a network: python3 install.py [FOLDER].

FOLDER is the virtual environment to create, `venv` beside this file where none is given.
"""

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA_LINE = 'export ANAPHOR_DATA="{folder}"'


class Problem(Exception):
    """What went wrong, in one line."""


def read_bundle() -> dict[str, Any]:
    try:
        bundle: dict[str, Any] = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
        return bundle
    except (OSError, ValueError):
        raise Problem(f"{HERE / 'bundle.json'} is missing or damaged: unpack the bundle again") from None


def check_python(bundle: dict[str, Any]) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here not in bundle["pythons"]:
        wanted = " or ".join(bundle["pythons"])
        raise Problem(f"this is Python {here}, and the bundle is for {wanted}: python{bundle['pythons'][0]} install.py")


def check_files(bundle: dict[str, Any]) -> None:
    """Every file of the bundle is there and as it was."""
    for name, digest in bundle["sha256"].items():
        path = HERE / name
        if not path.is_file():
            raise Problem(f"{name} is missing: unpack the bundle again")
        found = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
        if found.hexdigest() != digest:
            raise Problem(f"{name} is damaged: copy and unpack the bundle again")


def create_environment(folder: Path) -> Path:
    """A virtual environment without packages; its Python."""
    if folder.exists() and not (folder / "pyvenv.cfg").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise Problem(f"{folder} exists and is no virtual environment: name another folder")
    try:
        venv.create(folder, with_pip=False, symlinks=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Problem(f"{folder} cannot be created: {error}") from None
    return folder / "bin" / "python"


def install(bundle: dict[str, Any], python: Path) -> None:
    """Let pip, run from its own wheel, install from the folder of wheels alone."""
    (pip,) = [name for name in bundle["wheels"] if name.startswith("pip-")]
    words = ["install", "--no-index", "--find-links", str(HERE / "wheels"), "--no-cache-dir", "--quiet"]
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    settings.update(PIP_CONFIG_FILE=os.devnull, PIP_DISABLE_PIP_VERSION_CHECK="1")
    command = [str(python), str(HERE / "wheels" / pip / "pip"), *words, "pip", *bundle["install"]]
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["pip printed nothing"]
        errors = [line for line in lines if line.startswith("ERROR:")]
        platforms = ", ".join(bundle["platforms"])
        raise Problem(f"pip cannot install on this machine (the bundle is for {platforms}): {(errors or lines)[-1]}")


def name_data(folder: Path) -> None:
    """Where the environment is activated, data sets are found in the bundle."""
    activate = folder / "bin" / "activate"
    line = DATA_LINE.format(folder=HERE / "data")
    text = activate.read_text(encoding="utf-8")
    if (HERE / "data").is_dir() and line not in text:
        activate.write_text(f"{text.rstrip()}\n{line}\n", encoding="utf-8")


def main(words: list[str]) -> int:
    folder = Path(words[0]).absolute() if words else HERE / "venv"
    try:
        bundle = read_bundle()
        check_python(bundle)
        print(f"checking {len(bundle['sha256'])} files", flush=True)
        check_files(bundle)
        print(f"installing {len(bundle['wheels'])} wheels into {folder}; this takes a minute or two", flush=True)
        python = create_environment(folder)
        install(bundle, python)
        name_data(folder)
    except (Problem, OSError) as problem:
        print(f"install: {problem}", file=sys.stderr)
        return 2
    print(f"installed; now type: . {folder / 'bin' / 'activate'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
