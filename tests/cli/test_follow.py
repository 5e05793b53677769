"""`rota runs follow`: runs as they change, until they end, or until somebody has seen enough."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rota import Context, Rota
from rota.run import Run
from tests.app.waiting import until
from tests.cli.calling import called
from tests.patience import PATIENCE

ENVIRON = os.environ | {"NO_COLOR": "1"}


class March:
    """A job whose every step is taken by the test."""

    def __init__(self, url: str) -> None:
        self.app = Rota(url, replica="web-1")
        self.steps: asyncio.Queue[int | None] = asyncio.Queue()

        @self.app.job()
        async def march(ctx: Context) -> None:
            while (mile := await self.steps.get()) is not None:
                ctx.progress(mile, 10, f"mile {mile}")
                if mile > 10:
                    raise ValueError("too far")

        self.job = march

    async def start(self) -> Run[None]:
        run = await self.job.enqueue()

        async def runs() -> bool:
            return await run.state() == "running"

        await until(runs)
        return run


@asynccontextmanager
async def marching(url: str) -> AsyncIterator[March]:
    march = March(url)
    async with march.app:
        yield march


@asynccontextmanager
async def following(*arguments: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rota", "runs", "follow", *arguments, env=ENVIRON | environ,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await process.stdout.readline()).decode()


@pytest.mark.parametrize("hints", ["on", "off"])
async def test_one_run_is_followed_to_its_end_with_hints_and_without(url: str, hints: str) -> None:
    async with marching(url) as march:
        run = await march.start()
        async with following(str(run.id), "--url", url, ROTA_HINTS=hints) as process:
            assert f"run {run.id} march: running on web-1" in await line(process)
            for mile in (1, 2):
                await march.steps.put(mile)
                assert f"run {run.id} march: {mile}/10 mile {mile}" in await line(process)
            await march.steps.put(None)
            assert f"run {run.id} march: succeeded after " in await line(process)
            assert await process.wait() == 0


async def test_the_exit_code_tells_how_it_ended(url: str) -> None:
    async with marching(url) as march:
        run = await march.start()
        early = await called("runs", "follow", str(run.id), "--for", "0.2", "--url", url)
        assert (early.code, early.err) == (3, f"rota: run {run.id} is not over; it goes on\n")
        await march.steps.put(11)
        failed = await called("runs", "follow", str(run.id), "--url", url)
        assert failed.code == 1
        assert ": ValueError: too far" in failed.lines[-1]
        missing = await called("runs", "follow", "99999", "--url", url)
        assert (missing.code, missing.err) == (1, "rota: there is no run 99999; it may have been pruned\n")


async def test_all_runs_are_followed_one_document_per_change(url: str) -> None:
    async with marching(url) as march:
        first = await march.start()
        async with following("--json", "--url", url) as process:
            seen = [json.loads(await line(process))]
            second = await march.job.enqueue()
            while {row["id"] for row in seen if row["state"] == "running"} != {first.id, second.id}:
                seen.append(json.loads(await line(process)))
            await march.steps.put(None)
            await march.steps.put(None)
            while {row["id"] for row in seen if row["state"] == "succeeded"} != {first.id, second.id}:
                seen.append(json.loads(await line(process)))
            process.send_signal(signal.SIGINT)
            _, complaint = await process.communicate()
            assert (process.returncode, complaint) == (130, b"")


async def test_what_was_over_before_is_no_news_and_filters_hold(url: str) -> None:
    async with marching(url) as march:
        for _ in range(2):
            await march.steps.put(None)
            await (await march.job.enqueue()).result(PATIENCE)
        idle = await called("runs", "follow", "--until-idle", "--url", url)
        assert (idle.code, idle.out) == (0, "")
        await march.start()
        assert (await called("runs", "follow", "--job", "other", "--until-idle", "--url", url)).out == ""
        assert (await called("runs", "follow", "--state", "failed", "--for", "0.1", "--url", url)).out == ""
        short = await called("runs", "follow", "--for", "0.1", "--url", url)
        assert (short.code, len(short.lines)) == (0, 1)
        waiting = asyncio.create_task(called("runs", "follow", "--until-idle", "--url", url))
        await asyncio.sleep(0)
        await march.steps.put(None)
        assert (await waiting).code == 0


async def test_whoever_stops_reading_ends_it_quietly(url: str) -> None:
    async with marching(url) as march:
        run = await march.start()
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rota", "runs", "follow", str(run.id), "--url", url,
            env=ENVIRON, stdout=writing, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(writing)
        assert b"running on web-1" in await asyncio.to_thread(os.read, reading, 1000)
        os.close(reading)
        await march.steps.put(1)
        _, complaint = await process.communicate()
        assert (process.returncode, complaint) == (0, b"")
        await march.steps.put(None)


async def test_on_a_terminal_a_bar_moves(url: str) -> None:
    async with marching(url) as march:
        run = await march.start()
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rota", "runs", "follow", str(run.id), "--url", url, "--for", "60",
            env=ENVIRON | {"TERM": "xterm", "COLUMNS": "100"}, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        shown = ""

        async def shows(text: str) -> None:
            nonlocal shown
            async with asyncio.timeout(PATIENCE):
                while text not in shown:
                    shown += (await asyncio.to_thread(os.read, ours, 4000)).decode()

        await shows("running")
        await march.steps.put(3)
        await shows("3/10 mile 3")
        assert "━" in shown
        await march.steps.put(None)
        await shows("succeeded after")
        assert await process.wait() == 0
        os.close(ours)
