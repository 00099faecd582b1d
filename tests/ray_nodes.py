"""A Ray cluster of two nodes on this machine, of which the second one can leave. Run as a script, this is the cluster;
imported, what starts the script, so that Ray never is in a process that is forked."""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class RayNodes:
    """The cluster as its user sees it: an address, and a node that may leave."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.address = self._answer()
        assert self.address, "the cluster did not start"

    def replace_second(self, *, is_sudden: bool) -> None:
        """Let the second node leave, and another one join. `is_sudden`: its tasks end at the same moment, as those of a
        machine without power; else they learn of it."""
        assert self.process.stdin is not None
        self.process.stdin.write("lose\n" if is_sudden else "leave\n")
        self.process.stdin.flush()
        assert self._answer() == "joined", "no other node joined"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def start_nodes() -> Iterator[RayNodes]:
    """Two nodes, each with one processor."""
    with subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield RayNodes(process)
        finally:
            process.communicate()


# The script -----------------------------------------------------------------------------------------------------------


def main() -> None:
    from ray.cluster_utils import Cluster  # here, where it may be missing only in who asks for a cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    answer(cluster.address)
    for line in sys.stdin:
        if line.strip() == "lose":
            end_processes(second)
        cluster.remove_node(second, allow_graceful=False)
        second = cluster.add_node(num_cpus=1)
        answer("joined")
    cluster.shutdown()


def answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def end_processes(node: Any) -> None:
    """Kill the processes of a node with all that they have started."""
    parents = [info.process.pid for infos in node.all_processes.values() for info in infos]
    started = defaultdict(list)
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = place.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
            started[int(fields[1])].append(int(place.parent.name))
    for process in parents:
        parents += started[process]
    for process in parents:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
