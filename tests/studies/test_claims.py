"""A claim has one holder at a time, whatever is killed, and no work of a dead one stays with it."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from anaphor.errors import ConfigError
from anaphor.studies import claims as module
from anaphor.studies.claims import DONE, FREE, STALE, Claims, Holder, refuse_workers, start_of, this_place


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def elsewhere(claims, place="another boot pid:[1]"):
    """The same claims as those of a process of another machine."""
    claims._me = replace(claims._me, host="elsewhere", place=place)
    return claims


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline


def gone():
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    holder = Holder("here", this_place(), process.pid, start_of(process.pid))
    assert holder.is_gone() is False
    process.kill()
    until(lambda: not start_of(process.pid))  # a zombie is gone, too
    assert holder.is_gone() is True
    process.communicate()
    return holder


def test_of_many_that_claim_at_once_one_succeeds(tmp_path):
    won, together = [], threading.Barrier(8)

    def claim():
        own = Claims(tmp_path)
        for name in map(str, range(30)):
            together.wait()
            if own.take(name):
                won.append(name)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won, key=int) == list(map(str, range(30)))
    assert not [path for path in (tmp_path / "claims").iterdir() if path.suffix == ".tmp"]


def test_without_hard_links_one_succeeds_as_well(tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    first, second = Claims(tmp_path), Claims(tmp_path)
    assert first.take("a")
    assert not second.take("a")


def test_a_holder_that_was_killed_here_is_succeeded_at_once(tmp_path):
    dead, own = Claims(tmp_path), Claims(tmp_path)
    dead._me = gone()
    assert dead.take("a")
    assert own.take("a")
    assert (tmp_path / "claims" / "a.2").exists()
    assert not Claims(tmp_path).take("a")


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path):
    dead, own = Claims(tmp_path), Claims(tmp_path)
    dead._me = replace(dead._me, start="1")
    assert dead.take("a")
    assert own.take("a")


@pytest.mark.parametrize("place", ["another boot pid:[1]", ""])
def test_a_holder_elsewhere_is_succeeded_when_it_has_shown_no_life_for_long(tmp_path, place):
    other, clock = elsewhere(Claims(tmp_path), place), Clock()
    own = Claims(tmp_path, clock=clock)
    assert other.take("a")
    assert not own.take("a")
    for _ in range(5):  # it lives
        clock.now += STALE
        other._write(other._path("a", 1))
        assert not own.take("a")
    clock.now += STALE
    assert not own.take("a")
    clock.now += 1
    assert own.take("a")


def test_one_that_was_asleep_sees_that_it_was_succeeded(tmp_path):
    clock = Clock()
    with elsewhere(Claims(tmp_path, beat=0.01)) as other:
        assert other.take("a")
        other.check()
        own = Claims(tmp_path, clock=clock)
        with other._lock:  # asleep
            assert not own.take("a")
            clock.now += STALE + 1
            assert own.take("a")
        until(lambda: other._lost)
        with pytest.raises(ConfigError, match="another worker has taken over a, because this process did nothing"):
            other.check()
    assert not Claims(tmp_path).take("a"), "what the first one does at its end does not touch the claim of the second"


def test_signs_of_life_change_the_file_and_nothing_else(tmp_path):
    with Claims(tmp_path, beat=0.01) as own:
        assert own.take("a")
        path = tmp_path / "claims" / "a.1"
        first = json.loads(path.read_bytes())
        until(lambda: json.loads(path.read_bytes()) != first)
        found = json.loads(path.read_bytes())
        assert {**found, "beat": 0} == {**first, "beat": 0}
        assert path.stat().st_size == module.RECORD_BYTES


def test_done_work_is_known_to_others_and_work_that_was_given_up_is_free(tmp_path):
    late = Claims(tmp_path)
    with Claims(tmp_path) as own:
        assert own.take("done")
        assert own.take("left")
        own.release("done")
    states = {name: json.loads((tmp_path / "claims" / f"{name}.1").read_bytes())["state"] for name in ("done", "left")}
    assert states == {"done": DONE, "left": FREE}
    assert late.is_done_by_other("done")
    assert not late.is_done_by_other("left")
    assert late.take("left")
    assert not Claims(tmp_path).is_done_by_other("done"), "what was done before is for this one to judge"


def test_the_first_that_is_free_stays_to_report_and_others_leave_when_they_know_that_it_lives(tmp_path):
    first, second, clock = elsewhere(Claims(tmp_path)), Claims(tmp_path), Clock()
    third = Claims(tmp_path, clock=clock)
    assert first.stays()
    assert second.stays(), "it does not know yet whether the first one lives"
    first._write(first._path("report", 1))
    assert not second.stays()
    assert third.stays()
    clock.now += STALE + 1
    assert third.stays()
    assert not second.stays()
    third.release("report")
    assert not second.stays()


def test_a_damaged_claim_is_like_one_of_another_machine(tmp_path):
    clock = Clock()
    own = Claims(tmp_path, clock=clock)
    (tmp_path / "claims" / "a.1").write_bytes(b'{"host": 3')
    assert not own.take("a")
    clock.now += STALE + 1
    assert own.take("a")


def test_a_folder_that_workers_share_is_refused_to_others(tmp_path):
    refuse_workers(tmp_path)
    with Claims(tmp_path) as own:
        assert own.take("a")
        with pytest.raises(ConfigError, match=r"in use by workers \(process \d+ on .*\): join them with --worker"):
            refuse_workers(tmp_path)
    refuse_workers(tmp_path)
    other = elsewhere(Claims(tmp_path))
    assert other.take("b")
    with pytest.raises(ConfigError, match="on elsewhere"):
        refuse_workers(tmp_path)
    os.utime(tmp_path / "claims" / "b.1", (1, 1))
    refuse_workers(tmp_path)
