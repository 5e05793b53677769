"""Assertions about what was enqueued: they hold, they fail, and they say what there is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from rota import BadParameters, NotOpen, Rota
from rota.testing import all_enqueued, assert_enqueued, cluster, refute_enqueued

NOON = datetime(2027, 5, 14, 12, tzinfo=UTC)


@dataclass
class Size:
    width: int
    height: int = 600


def studio() -> Rota:
    app = Rota()

    @app.job()
    async def resize(path: str, size: Size | None = None, quality: int = 80) -> None: ...

    @app.every("1h")
    @app.job()
    async def sweep(**rooms: str) -> None: ...

    return app


async def test_what_was_enqueued_is_found_by_any_of_its_arguments(url: str) -> None:
    app = studio()
    resize, sweep = app.jobs["resize"], app.jobs["sweep"]
    async with cluster(app, start=NOON, url=url) as it:
        await resize.using(key="a").enqueue("a.png", size=Size(400))
        await resize.enqueue("b.png", quality=50)
        await sweep.enqueue(kitchen="now")
        await assert_enqueued(resize, times=2)
        [row] = await assert_enqueued(resize, "a.png")
        assert row.idempotency_key == "a"
        await assert_enqueued(resize, key="a")
        await assert_enqueued(resize, size=Size(400, 600))
        await assert_enqueued(resize, quality=80)  # by its default
        await assert_enqueued(resize.call("b.png", quality=50))
        await assert_enqueued(resize.using(key="a").call("a.png", size=Size(400)))
        await assert_enqueued(sweep, kitchen="now")
        await refute_enqueued(resize, "c.png")
        await refute_enqueued(resize.call("a.png"))
        await it.run_for(hours=1)  # what ran was enqueued all the same; ticks were not
        await assert_enqueued(resize, "a.png", state="succeeded")
        await assert_enqueued(sweep)
        assert [row.job_id for row in await all_enqueued(app)] == ["resize", "resize", "sweep"]
        assert len(await all_enqueued(app, resize)) == 2


async def test_a_failed_assertion_shows_what_was_enqueued(url: str) -> None:
    app = studio()
    resize = app.jobs["resize"]
    async with cluster(app, start=NOON, url=url):
        with pytest.raises(AssertionError) as nothing:
            await assert_enqueued(resize, "a.png", key="k")
        assert str(nothing.value) == (
            """expected 1 run of 'resize' with {"path":"a.png"}, key 'k'; there is none\nnothing was enqueued"""
        )
        await resize.using(key="b").enqueue("b.png")
        await resize.enqueue("c.png")
        with pytest.raises(AssertionError) as wrong:
            await assert_enqueued(resize, "a.png")
        shown = str(wrong.value).replace('": "', '":"').splitlines()
        assert shown == [
            """expected 1 run of 'resize' with {"path":"a.png"}; there is none""",
            "what was enqueued:",
            """  run 1 of 'resize' with {"path":"b.png"}, key 'b', queued""",
            """  run 2 of 'resize' with {"path":"c.png"}, queued""",
        ]
        with pytest.raises(AssertionError, match=r"expected no run of 'resize'; there are 2"):
            await refute_enqueued(resize)
        with pytest.raises(AssertionError, match=r"expected 3 runs of 'resize'; there are 2"):
            await assert_enqueued(resize, times=3)


async def test_arguments_that_the_job_does_not_have_are_refused(url: str) -> None:
    app = studio()
    resize = app.jobs["resize"]
    async with cluster(app, start=NOON, url=url):
        with pytest.raises(BadParameters, match="colour"):
            await refute_enqueued(resize, colour="red")
        with pytest.raises(BadParameters, match="has its arguments already"):
            await assert_enqueued(resize.call("a"), "b")
    with pytest.raises(NotOpen):
        await assert_enqueued(resize)
