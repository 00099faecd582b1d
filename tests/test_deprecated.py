"""A deprecated name works for two minor versions, with a warning that names the new one."""

import pytest

import anaphor
from anaphor import deprecated
from anaphor.deprecated import AnaphorDeprecationWarning, Renamed, removed_in


def test_an_old_name_gives_the_new_one_and_warns_where_it_is_used(monkeypatch):
    monkeypatch.setattr(deprecated, "RENAMED", {"construct": Renamed("build", since="1.3")})
    with pytest.warns(AnaphorDeprecationWarning) as caught:
        assert anaphor.construct is anaphor.build
    assert str(caught[0].message) == "anaphor.construct is now anaphor.build; the old name is removed in anaphor 1.5"
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'constructed'"):
        anaphor.constructed  # noqa: B018


@pytest.mark.parametrize(("since", "removed"), [("1.0", "1.2"), ("1.9", "1.11"), ("2.3.1", "2.5")])
def test_two_minor_versions_lie_between(since, removed):
    assert removed_in(since) == removed


def test_no_name_is_kept_beyond_its_time():
    now = tuple(map(int, anaphor.__version__.split(".")[:2]))
    for old, entry in deprecated.RENAMED.items():
        assert now < tuple(map(int, removed_in(entry.since).split("."))), f"remove {old}"
        assert hasattr(anaphor, entry.new)
        assert old not in dir(anaphor)


def test_python_shows_the_warning_to_users():
    assert issubclass(AnaphorDeprecationWarning, FutureWarning)
