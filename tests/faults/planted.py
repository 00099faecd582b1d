"""Links in a folder that came from someone else, to files of the user, which no command may touch."""

import shutil

FILES = (".lock", "metrics.jsonl", "samples.txt", "result.json", "spec.yaml", "curves.png")
FOLDERS = ("checkpoints", "events", "previous")


def plant(folder, name, victim):
    """Put a link at `folder/name`, and give a function that raises if what it leads to has changed.

    What is there already moves to where the link leads, so that it is plausible.
    """
    victim.mkdir()
    place, target = folder / name, victim / f"precious-{name}"
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        shutil.move(place, target)
    elif "." in name or name == "output":
        target.write_text("precious\n")
    else:
        (target / "step-1").mkdir(parents=True)
    if target.is_dir():
        (target / "step-1").mkdir(exist_ok=True)
        (target / "step-1" / "precious.txt").write_text("precious\n")
    place.symlink_to(target)
    before = snapshot(victim)

    def check():
        assert snapshot(victim) == before

    return check


def snapshot(folder):
    """Every path below a folder, with the content of files."""
    return {path: path.is_dir() or path.read_bytes() for path in folder.rglob("*")}
