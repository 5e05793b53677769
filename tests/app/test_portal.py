"""An app without an event loop: `with app`, `with app.client()`, `app.wait`, and what they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rota import BadInput, Context, NotOpen, Rota, Run, RunFailed, StoreUnavailable, Timeout, current_context
from rota.portal import Portal
from tests.harness import execute
from tests.patience import PATIENCE


def with_jobs(url: str, **settings: Any) -> Rota:
    app = Rota(url, **settings)

    @app.job
    def shout(text: str) -> str:
        return text.upper()

    return app


def test_a_plain_program_runs_a_replica_and_waits_for_results(url: str) -> None:
    app = with_jobs(url)
    shout = app.jobs["shout"]
    with app as opened:
        assert opened is app
        run = app.wait(shout.enqueue("a"))
        assert app.wait(run.result(PATIENCE)) == "A"
        [replica] = app.wait(app.store.list_replicas())
        assert replica.pid == os.getpid()
    assert [t.name for t in threading.enumerate() if t.name in ("rota-background", "rota-control")] == []
    with app.client() as opened:
        assert opened is app
        assert app.wait(app.store.list_replicas()) == []
        assert app.wait(app.run(run.id).state()) == "succeeded"
        waiting = app.wait(shout.enqueue("b"))
    with app:
        assert app.wait(app.run(waiting.id).result(PATIENCE)) == "B"


def test_the_end_of_the_block_lets_running_work_finish(url: str) -> None:
    app = Rota(url)
    started, go = threading.Event(), threading.Event()

    @app.job
    def slow() -> str:
        started.set()
        assert go.wait(30)
        return "done"

    with app:
        run = app.wait(slow.enqueue())
        assert started.wait(30)
        threading.Timer(0.2, go.set).start()
    with app.client():
        assert app.wait(app.run(run.id).state()) == "succeeded"


def test_an_app_that_cannot_be_opened_says_so_where_with_stands(tmp_path: Path) -> None:
    app = Rota(f"sqlite:///{tmp_path}/no/such/folder/rota.db", connect_timeout=0.1)
    with pytest.raises(StoreUnavailable, match="no/such/folder"):
        with app:
            raise AssertionError("the block must not run")
    with pytest.raises(StoreUnavailable, match="no/such/folder"):
        with app.client():
            raise AssertionError("the block must not run")
    assert [t.name for t in threading.enumerate() if t.name == "rota-background"] == []


def test_what_the_block_raises_comes_out_and_the_app_is_closed(url: str) -> None:
    app = with_jobs(url)
    with pytest.raises(KeyError):
        with app:
            raise KeyError("mine")
    with app.client():
        assert app.wait(app.store.list_replicas()) == []


def test_errors_of_the_coroutine_are_raised_by_wait(url: str) -> None:
    app = Rota(url)

    @app.job
    def doomed() -> None:
        raise ValueError("boom")

    async def late() -> None:
        raise TimeoutError("its own")

    with app:
        with pytest.raises(RunFailed, match="boom"):
            app.wait(app.wait(doomed.enqueue()).result(PATIENCE))
        with pytest.raises(TimeoutError, match="its own"):
            app.wait(late(), timeout=PATIENCE)


async def _for_ever(seen: list[str], started: threading.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


def _comes_true(ask: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not ask() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(ask())


def test_a_wait_that_times_out_cancels_what_it_waited_for(url: str) -> None:
    seen: list[str] = []
    app = Rota(url)
    with app.client():
        with pytest.raises(Timeout, match=r"within 0\.05 s"):
            app.wait(_for_ever(seen, threading.Event()), timeout=0.05)
        assert _comes_true(lambda: seen)


def test_ctrl_c_cancels_what_is_waited_for(url: str) -> None:
    seen: list[str] = []
    started = threading.Event()
    app = Rota(url)

    def interrupt() -> None:
        assert started.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    with app.client():
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            app.wait(_for_ever(seen, started))
        assert _comes_true(lambda: seen)


def test_whoever_still_waits_when_the_app_closes_is_told(url: str) -> None:
    app = Rota(url)
    started = threading.Event()
    told: list[BaseException] = []

    def wait() -> None:
        try:
            app.wait(_for_ever([], started))
        except BaseException as error:
            told.append(error)

    with app.client():
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert started.wait(30)
    waiter.join(30)
    assert [type(error) for error in told] == [NotOpen]


def test_a_closed_app_refuses_to_wait_and_names_the_way_out(url: str) -> None:
    app = with_jobs(url)
    for _ in range(2):
        with pytest.raises(NotOpen, match="without an event loop: `with`"):
            app.wait(app.jobs["shout"].enqueue("a"))
        with app.client():
            pass
    with app.client():
        with pytest.raises(BadInput, match="takes a coroutine"):
            app.wait(app.jobs["shout"])  # type: ignore[arg-type]
    gc.collect()  # a coroutine that was refused and not closed would be complained about here


async def test_inside_the_loop_it_says_await(url: str) -> None:
    app = with_jobs(url)
    async with app.client():
        with pytest.raises(BadInput, match="await it"):
            app.wait(app.jobs["shout"].enqueue("a"))
        with pytest.raises(BadInput, match="use `async with`"):
            with app.client():
                pass


async def test_another_thread_waits_while_async_with_runs(url: str) -> None:
    app = with_jobs(url)
    async with app:
        run = await asyncio.to_thread(app.wait, app.jobs["shout"].enqueue("a"))
        assert await run.result(PATIENCE) == "A"


def test_another_loop_than_the_apps_is_neither_held_up_nor_tangled(url: str) -> None:
    app = with_jobs(url)

    async def other_loop(known: Run[str]) -> str:
        for use in (app.jobs["shout"].enqueue("a"), known.result(), known.state(), app.lock("x").try_lock()):
            with pytest.raises(BadInput, match="open in another event loop"):
                await use
        with pytest.raises(BadInput, match=r"asyncio\.to_thread"):
            app.wait(app.jobs["shout"].enqueue("a"))
        run = await asyncio.to_thread(app.wait, app.jobs["shout"].enqueue("a"))
        return str(await asyncio.to_thread(app.wait, run.result(PATIENCE)))

    with app:
        assert asyncio.run(other_loop(app.wait(app.jobs["shout"].enqueue("b")))) == "A"


def test_it_opens_once_at_a_time(url: str) -> None:
    app = with_jobs(url)
    with app:
        for opening in (app, app.client()):
            with pytest.raises(BadInput, match="open already"):
                with opening:
                    pass
        assert app.wait(app.wait(app.jobs["shout"].enqueue("still open")).result(PATIENCE)) == "STILL OPEN"


def test_of_two_threads_that_open_it_at_once_one_does(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, inside, two = with_jobs(url), threading.Event(), threading.Event()

    class Slow(Portal):
        def __init__(self) -> None:
            (two if inside.is_set() else inside).set()
            two.wait(0.5)  # nobody else gets here meanwhile
            super().__init__()

    monkeypatch.setattr("rota.door.Portal", Slow)
    over = threading.Event()

    def first() -> None:
        with app.client():
            over.wait(30)

    other = threading.Thread(target=first)
    other.start()
    try:
        assert inside.wait(30)
        with pytest.raises(BadInput, match="open already"):
            app.client().__enter__()
    finally:
        over.set()
        other.join()


def test_a_run_in_a_thread_enqueues_as_the_parent(url: str) -> None:
    app = Rota(url)

    @app.job
    async def child() -> None: ...

    @app.job
    def parent(ctx: Context) -> int:
        run = app.wait(child.enqueue())
        context = current_context()
        assert context is not None
        assert context.run_id == ctx.run_id
        return run.id

    with app:
        run = app.wait(parent.using(correlation_id="order-7").enqueue())
        row = app.wait(app.run(app.wait(run.result(PATIENCE))).row())
    assert (row.parent_id, row.correlation_id) == (run.id, "order-7")


def test_an_async_run_that_waits_is_refused_and_does_not_hang(url: str) -> None:
    app = Rota(url)

    @app.job
    async def wrong() -> None:
        app.wait(asyncio.sleep(0))

    with app:
        with pytest.raises(RunFailed, match="would wait for itself"):
            app.wait(app.wait(wrong.enqueue()).result(PATIENCE))


def python(code: str, url: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A program of its own; one that hangs is an error."""
    prelude = "import os, signal, sys, threading\nfrom rota import *\napp = Rota()\n"
    prelude += "@app.job\ndef shout(text: str) -> str:\n    return text.upper()\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + code], env=os.environ | {"ROTA_URL": url}, timeout=timeout,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


FORKING = """
{open}
app.wait(shout.enqueue("a"))
child = os.fork()
if not child:
    for use in (lambda: app.wait(shout.enqueue("b")), lambda: app.store, app.open_until_exit, app.__enter__):
        try:
            use()
        except Forked as error:
            print(error, file=sys.stderr)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
run = app.wait(shout.enqueue("c"))
print(app.wait(run.state()))
{close}
"""


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("app.client().open_until_exit()", ""),
        ("app.open_until_exit()", ""),
        ("app.__enter__()", "app.__exit__(None, None, None)"),
    ],
)
def test_a_forked_child_is_refused_and_leaves_the_parents_alone(url: str, opening: str, closing: str) -> None:
    done = python(FORKING.format(open=opening, close=closing), url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("queued", "running", "succeeded")
    assert done.stderr.count("which then forked this one") == 4
    assert len(done.stderr.splitlines()) == 4


def test_a_child_opens_what_its_parent_had_not_open(url: str) -> None:
    code = """
with app.client():
    pass
child = os.fork()
if not child:
    app.open_until_exit()
    run = app.wait(shout.enqueue("b"))
    print(app.wait(run.result(60)), flush=True)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    done = python(code, url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "B\n", "")


async def test_open_until_exit_stops_gracefully_at_the_exit(url: str) -> None:
    code = """
started, go = threading.Event(), threading.Event()
@app.job
def slow() -> None:
    started.set()
    go.wait(30)
app.open_until_exit()
run = app.wait(slow.enqueue())
assert started.wait(30)
threading.Timer(0.2, go.set).start()
"""
    done = await asyncio.to_thread(python, code, url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert await execute(url, "select state from job_runs") == [("succeeded",)]
    assert await execute(url, "select count(*) from replicas") == [(0,)]


async def test_what_is_at_work_at_the_exit_still_has_threads_to_finish_with(url: str) -> None:
    code = """
import asyncio
started = threading.Event()
@app.job
async def slow() -> str:
    started.set()
    while not threading._SHUTTING_DOWN:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return await asyncio.to_thread(str.upper, "done")
app.open_until_exit()
app.wait(slow.enqueue())
assert started.wait(30)
"""
    done = await asyncio.to_thread(python, code, url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert await execute(url, "select state from job_runs") == [("succeeded",)]


async def test_an_exit_does_not_hang_on_what_was_left_open(url: str) -> None:
    done = await asyncio.to_thread(python, "app.__enter__()\napp.wait(shout.enqueue('a'))\n", url)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exit_does_not_wait_for_a_function_that_never_ends(tmp_path: Path) -> None:
    code = """
from dataclasses import replace
app.settings = replace(app.settings, shutdown_timeout=0.1)
started = threading.Event()
@app.job
def stuck() -> None:
    started.set()
    threading.Event().wait()
app.open_until_exit()
app.wait(stuck.enqueue())
assert started.wait(30)
"""
    done = python(code, f"sqlite:///{tmp_path}/rota.db")
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_block_that_waits(url: str) -> None:
    code = """
import time
with app:
    app.wait(shout.enqueue("a"))
    print("open", flush=True)
    while True:
        time.sleep(0.1)  # a signal in the instant in which Python lets go of its lock is seen after the sleep
"""
    prelude = "from rota import *\napp = Rota()\n@app.job\ndef shout(text: str) -> str:\n    return text\n"
    with subprocess.Popen(
        [sys.executable, "-c", prelude + code], env=os.environ | {"ROTA_URL": url}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    assert process.returncode == -signal.SIGINT, said
    assert said.rstrip().endswith("KeyboardInterrupt")
