"""Jobs: every one ends, whatever its worker does, and the next one finds a worker."""

import asyncio
import json
import os
import time

import pytest

from anaphor.web import jobs, worker
from anaphor.web.jobs import Busy, Jobs
from web.serving import PRETENDED


def play(scene):
    """Run a scene with jobs, and close them."""

    async def whole():
        queue = Jobs(PRETENDED)
        try:
            return await scene(queue)
        finally:
            await queue.close()

    return asyncio.run(whole())


def submit(queue, text="", **values):
    return queue.submit({"request": {"text": text, **values}, "names": {}})


async def finish(*started):
    for job in started:
        while not job.is_closed:
            await job.wait(1.0)
    return started[0] if len(started) == 1 else started


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_worker_can_be_started_before_the_first_job_which_it_then_serves():
    async def scene(queue):
        queue.warm()
        queue.warm()
        while queue._process is None:
            await asyncio.sleep(0)
        early = queue._process.pid
        return early, json.loads((await finish(submit(queue, "one"))).result)["process"]

    early, served = play(scene)
    assert early == served
    assert not alive(served)


def test_one_worker_serves_all_jobs_in_their_order_and_leaves_with_the_server():
    async def scene(queue):
        first, second = await finish(submit(queue, "one"), submit(queue, "prints"))
        return json.loads(first.result), json.loads(second.result)

    first, second = play(scene)
    assert first["request"] == {"text": "one"}
    assert first["process"] == second["process"], "what a library prints is no answer"
    assert first["nice"] >= min(19, os.nice(0) + worker.NICENESS), "than this process"
    assert first["kill first"] == "1000"
    assert first["not a number"] is None
    assert not alive(first["process"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("killed", "the process with the model has ended: it was killed, perhaps because the memory is full"),
        ("exits", "the process with the model has ended: exit code 7"),
        ("fails", "internal error: the terminal of `anaphor serve` shows the details"),
        ("disk", "a file of the run cannot be read: No space left on device"),
        ("refuses", "data.txt is broken; see a.md and b.txt, or use lr=1/2"),
        ("is too large", "the text has 5,000 tokens"),
    ],
)
def test_a_job_that_fails_says_why_in_a_line_without_paths_and_the_next_one_works(text, error):
    async def scene(queue):
        return await finish(submit(queue, text), submit(queue))

    failed, following = play(scene)
    assert (failed.state, failed.error) == ("failed", error)
    assert failed.is_too_large == (text == "is too large")
    assert following.state == "done"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("no x.txt here, and no /home/jane doe/our school/x.txt", "no x.txt here, and no x.txt"),
        ("cannot read /home/jane van der doe/my text.txt: it is empty", "cannot read my text.txt: it is empty"),
        ("C:\\Users\\jane doe\\a.txt is broken", "a.txt is broken"),
        ("/a/one.txt has 3 lines and /b/two.txt has 2", "one.txt has 3 lines and two.txt has 2"),
        ("see /a/b.md or use lr=1/2", "see b.md or use lr=1/2"),
        ("<b>markup</b> is text", "<b>markup</b> is text"),
    ],
)
def test_folders_with_spaces_in_their_names_are_not_shown(line, shown):
    assert worker.without_paths(line) == shown


@pytest.fixture
def patient(monkeypatch):
    """The worker, which yields to all others, may take its time on a busy machine."""
    monkeypatch.setattr(jobs, "CANCEL_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_running_job_is_cancelled_without_losing_the_worker_if_it_listens():
    async def scene(queue):
        before = json.loads((await finish(submit(queue))).result)["process"]
        long = submit(queue, "works for long")
        while long.progress[2] != "working":
            await long.wait(1.0)
        assert long.state == "running"
        queue.cancel(long)
        after = await finish(submit(queue))
        return long, before, json.loads(after.result)["process"]

    long, before, after = play(scene)
    assert long.state == "cancelled"
    assert before == after


def test_a_running_job_that_does_not_listen_is_killed(monkeypatch):
    monkeypatch.setattr(jobs, "CANCEL_SECONDS", 0.05)

    async def scene(queue):
        before = json.loads((await finish(submit(queue))).result)["process"]
        hung = submit(queue, "hangs")
        while hung.state == "waiting":
            await hung.wait(1.0)
        queue.cancel(hung)
        after = await finish(submit(queue))
        return hung, before, json.loads(after.result)["process"]

    hung, before, after = play(scene)
    assert hung.state == "cancelled"
    assert before != after
    assert not alive(before)


@pytest.mark.usefixtures("patient")
def test_cancelling_while_the_worker_starts_does_not_start_it_again():
    async def scene(queue):
        early = submit(queue, "works for long")
        await early.wait(1.0)
        queue.cancel(early)
        assert not early.is_begun
        following = submit(queue)
        while following.state == "waiting":
            await asyncio.sleep(0.01)
        process = queue._process.pid
        await finish(following)
        return early, process, json.loads(following.result)["process"]

    early, before, after = play(scene)
    assert early.state == "cancelled"
    assert early.is_begun
    assert before == after


@pytest.mark.parametrize("text", ["speaks nonsense", "speaks too long"])
def test_an_answer_that_cannot_be_read_ends_the_job_and_the_worker(text):
    async def scene(queue):
        return await finish(submit(queue, text), submit(queue))

    failed, following = play(scene)
    assert (failed.state, failed.error) == ("failed", "the process with the model gave no answer that can be read")
    assert following.state == "done"


def test_a_job_that_takes_too_long_is_stopped():
    async def scene(queue):
        queue.seconds = 0.2
        late = await finish(submit(queue, "hangs"))
        queue.seconds = 60.0
        return late, await finish(submit(queue))

    late, following = play(scene)
    assert (late.state, late.error) == ("failed", "stopped: it took longer than 0.2 seconds")
    assert following.state == "done"


def test_a_waiting_job_can_be_cancelled_and_too_many_are_refused():
    async def scene(queue):
        running = submit(queue, "hangs")
        while running.state == "waiting":
            await running.wait(1.0)
        waiting = [submit(queue) for _ in range(jobs.MAX_WAITING)]
        with pytest.raises(Busy):
            submit(queue)
        queue.cancel(waiting[3])
        queue.cancel(waiting[3])
        assert waiting[3].state == "cancelled"
        submit(queue)

    play(scene)


def test_a_job_that_nobody_asks_for_is_given_up(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.2)

    async def scene(queue):
        left = submit(queue, "hangs")
        started = time.monotonic()
        while not left.is_closed and time.monotonic() - started < 30:
            await asyncio.sleep(0.01)
        return left

    left = play(scene)
    assert (left.state, left.error) == ("cancelled", "cancelled: the page stopped asking for the result")


@pytest.mark.parametrize(("name", "most"), [("MAX_KEPT", 3), ("MAX_KEPT_BYTES", 1000)])
def test_only_the_latest_results_are_kept(monkeypatch, name, most):
    monkeypatch.setattr(jobs, name, most)

    async def scene(queue):
        last = None
        for _ in range(6):
            last = await finish(submit(queue, "x" * 200))
        assert last.id in queue.jobs
        return len(queue.jobs)

    assert 1 <= play(scene) <= 4


def test_an_idle_worker_leaves_the_memory(monkeypatch):
    monkeypatch.setattr(jobs, "IDLE_SECONDS", 0.05)

    async def scene(queue):
        process = json.loads((await finish(submit(queue))).result)["process"]
        started = time.monotonic()
        while alive(process) and time.monotonic() - started < 30:
            await asyncio.sleep(0.01)
        assert not alive(process)
        return await finish(submit(queue))

    assert play(scene).state == "done"


def test_a_worker_that_cannot_be_started_is_told():
    async def scene():
        queue = Jobs(("/no/such/program",))
        job = await finish(submit(queue))
        await queue.close()
        return job

    job = asyncio.run(scene())
    assert (job.state, job.error) == ("failed", "the process with the model has ended: No such file or directory")


def test_a_run_with_files_of_the_users_own_is_refused(tmp_path):
    (tmp_path / "spec.yaml").write_text("format: 2\ntask: lm\nimports:\n- {file: /home/me/mine.py, sha256: abc}\n")

    async def scene(queue):
        return await finish(queue.submit({"request": {}, "names": {str(tmp_path): "mine"}}))

    job = play(scene)
    assert job.error == (
        "mine was trained with parts of mine.py: pass --import mine.py: these are flags of `anaphor serve`"
    )
