"""Ray: the same study on a cluster gives the same numbers, bit for bit, whatever is killed on the way."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from ray_nodes import start_nodes
from studies.test_study_faults import (
    assert_nothing_lost_or_doubled,
    begin,
    disturbed,
    end,
    numbers,
    workers,
    write_study,
)

pytest.importorskip("ray", reason="`pip install anaphor[ray]` for studies on a cluster")
pytestmark = pytest.mark.slow


@pytest.fixture
def two_nodes():
    """A cluster of two nodes on this machine, each with one processor."""
    with start_nodes() as nodes:
        yield nodes


def test_two_nodes_give_the_table_of_this_machine(room, two_nodes):
    write_study(room, widths=[4, 8], seeds=3, steps=60)
    _, local = end(begin(room, room / "local"))
    code, far = end(begin(room, room / "far", "--engine", "ray", "--address", two_nodes.address))
    assert code == 0
    assert numbers(far) == numbers(local)
    assert far["table"] == local["table"]


def test_killed_workers_on_a_cluster_change_no_number(room, two_nodes):
    write_study(room, widths=[4, 8], seeds=2, steps=120)
    _, calm = end(begin(room, room / "calm"))
    words = ("--engine", "ray", "--address", two_nodes.address)
    code, result = disturbed(room, room / "wild", random.Random(3), kills=3, coordinator_kills=1, words=words)
    assert code == 0
    assert_nothing_lost_or_doubled(room, room / "wild", result, 4)
    assert numbers(result) == numbers(calm)


def test_a_killed_process_of_ray_takes_its_cell_along_and_both_begin_again(room, two_nodes):
    write_study(room, widths=[4], seeds=2, steps=400)
    _, calm = end(begin(room, room / "calm"))
    process = begin(room, room / "wild", "--engine", "ray", "--address", two_nodes.address)
    killed = False
    while process.poll() is None:
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            if not killed and (there := tasks_of_ray()):
                os.kill(there[0], signal.SIGKILL)
                killed = True
    code, result = end(process)
    assert killed
    assert code == 0
    assert numbers(result) == numbers(calm)


@pytest.mark.parametrize("is_sudden", [True, False])
def test_a_node_that_leaves_changes_no_number(room, two_nodes, is_sudden):
    """Its cell begins again, or goes on from its checkpoint, on another node."""
    write_study(room, widths=[4], seeds=4, steps=200)
    _, calm = end(begin(room, room / "calm"))
    process = begin(room, room / "wild", "--engine", "ray", "--address", two_nodes.address)
    while len(workers(room / "wild")) < 2 and process.poll() is None:
        pass
    assert process.poll() is None, "the study ended before both nodes had a cell"
    two_nodes.replace_second(is_sudden=is_sudden)
    code, result = end(process)
    assert code == 0
    assert_nothing_lost_or_doubled(room, room / "wild", result, 4)
    assert numbers(result) == numbers(calm)


def tasks_of_ray():
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::run_job"):
            found.append(int(place.name))
    return found


def test_no_cluster_at_an_address_is_one_line(room):
    write_study(room, widths=[4], seeds=1, steps=4)
    process = begin(room, room / "out", "--engine", "ray", "--address", "127.0.0.1:1")
    output, complaints = process.communicate(timeout=120)
    assert process.returncode == 2
    assert output == ""
    assert complaints.strip().startswith("anaphor: no Ray cluster at 127.0.0.1:1")
    assert json.dumps(complaints).count("\\n") == 1
