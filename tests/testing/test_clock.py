"""The clock of a database, held still and moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rota import BadInput, Rota
from rota.testing import Clock
from tests.app.waiting import until

NOON = datetime(2027, 5, 14, 12, tzinfo=UTC)


async def test_a_clock_makes_the_tables_if_there_are_none_and_stands_where_it_was_put(url: str) -> None:
    clock = Clock(url)
    east = timezone(timedelta(hours=9))
    assert await clock.travel_to(NOON.astimezone(east)) == NOON
    app = Rota(url)
    async with app.client():
        assert await app.store.now() == NOON
        assert await clock.advance(days=1, minutes=2) == NOON + timedelta(days=1, minutes=2)
        assert await app.store.now() == await clock.now()
        await clock.travel_to(datetime(987, 1, 2, 3, 4, 5, 6, tzinfo=UTC))
        assert await app.store.now() == datetime(987, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


async def test_before_the_first_move_it_shows_the_time(url: str) -> None:
    before = datetime.now(UTC)
    assert abs(await Clock(url).now() - before) < timedelta(minutes=5)


async def test_a_replica_that_runs_by_itself_follows_it(url: str) -> None:
    clock, app = Clock(url), Rota(url, beat=0.05)
    await clock.travel_to(NOON)

    @app.cron("0 18 * * *")
    async def evening() -> None: ...

    async def planned() -> bool:
        [schedule] = await app.schedules()
        return schedule.row.next_run_at is not None

    async def ran() -> bool:
        [schedule] = await app.schedules()
        return (schedule.row.run_count, schedule.row.last_state) == (1, "succeeded")

    async with app:
        await until(planned)
        await clock.travel_to(NOON.replace(hour=18))
        await until(ran)


async def test_a_time_without_a_zone_and_a_negative_one_are_refused(url: str) -> None:
    clock = Clock(url)
    with pytest.raises(BadInput, match="no time zone"):
        await clock.travel_to(datetime(2027, 5, 14))
    with pytest.raises(BadInput, match="negative"):
        await clock.advance(seconds=-1)
