"""Names that no file can have, and home folders of nobody."""

from anaphor.cli.main import main
from command_line import without_start_lines

IMPOSSIBLE = {"long": "x" * 300, "home": "~nobody-of-that-name/x"}


def assert_refused(place, name, folder, capsys):
    """A command with such a name in place of PATH ends with one line that names it, and writes nothing."""
    before = sorted(folder.iterdir())
    assert main(place.replace("PATH", IMPOSSIBLE[name]).split()) == 2
    (line,) = without_start_lines(capsys.readouterr().err)
    assert IMPOSSIBLE[name][:50] in line
    assert [path for path in sorted(folder.iterdir()) if path.name != "runs"] == before
