"""Inline: what is enqueued runs at once, without a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest

from rota import BadInput, BadParameters, Context, NotOpen, Rota, RunFailed
from rota.testing import assert_enqueued, inline


@dataclass
class Order:
    number: int
    day: date


def shop() -> Rota:
    app = Rota("sqlite:////nowhere/at/all.db")

    @app.job(retry=3)
    async def charge(ctx: Context, order: Order) -> Order:
        assert isinstance(order, Order)
        if order.number < 0:
            raise LookupError(f"no order {order.number}")
        await app.jobs["receipt"].enqueue(order.number)
        return Order(order.number, date(2028, 1, 1))

    @app.job()
    def receipt(ctx: Context, number: int) -> str:
        return f"{ctx.job} {number} {ctx.correlation_id}"

    @app.job()
    async def odd() -> object:
        return object()

    return app


async def test_the_job_has_run_when_enqueue_returns_and_its_arguments_went_through_json() -> None:
    app = shop()
    order = Order(7, date(2027, 5, 14))
    with inline(app) as done:
        run = await app.jobs["charge"].using(delay=3600, correlation_id="c").enqueue(order)
        assert await run.result() == Order(7, date(2028, 1, 1))
        done.assert_enqueued(app.jobs["charge"], order, state="succeeded")
        [receipt] = done.assert_enqueued(app.jobs["receipt"], number=7)
        assert (receipt.result, receipt.parent_id) == ('"receipt 7 c"', run.id)
        done.refute_enqueued(app.jobs["receipt"], number=8)
        await assert_enqueued(app.jobs["receipt"])  # the other way to ask
        assert len(done.all_enqueued()) == 2
    with pytest.raises(NotOpen):
        await app.jobs["receipt"].enqueue(1)


def test_code_without_an_event_loop_is_run_inline_too() -> None:
    app = shop()
    with inline(app) as done:
        run = app.jobs["receipt"].enqueue_sync(7)
        assert app.wait(run.result()) == f"receipt 7 {run.id}"
        nothing: Any = object()  # whatever it is, nothing is written to it
        app.jobs["receipt"].using(connection=nothing).enqueue_sync(8)
        assert [row.parameters for row in done.all_enqueued()] == ['{"number":7}', '{"number":8}']
    with pytest.raises(NotOpen):
        app.jobs["receipt"].enqueue_sync(1)


async def test_a_failure_raises_where_it_was_enqueued_and_is_not_tried_again() -> None:
    app = shop()
    with inline(app) as done:
        with pytest.raises(LookupError, match="no order -1"):
            await app.jobs["charge"].enqueue(Order(-1, date(2027, 5, 14)))
        [row] = done.all_enqueued()
        assert (row.state, row.error) == ("failed", "LookupError: no order -1")


async def test_wrong_types_are_found() -> None:
    app = shop()
    with inline(app) as done:
        with pytest.raises(BadParameters, match="number"):
            await app.jobs["receipt"].enqueue("seven")
        with pytest.raises(BadParameters, match="JSON"):
            await app.jobs["receipt"].enqueue(object())
        with pytest.raises(RunFailed, match="is not JSON"):
            await app.jobs["odd"].enqueue()
        with pytest.raises(AssertionError, match="there is none"):
            done.assert_enqueued(app.jobs["receipt"])


async def test_the_same_key_runs_once() -> None:
    app = shop()
    with inline(app) as done:
        first = await app.jobs["receipt"].using(key="r1").enqueue(1)
        second = await app.jobs["receipt"].using(key="r1").enqueue(1)
        assert (first.id, first.created, second.id, second.created) == (1, True, 1, False)
        done.assert_enqueued(app.jobs["receipt"], key="r1")
        many = await app.enqueue_many([app.jobs["receipt"].call(n) for n in (2, 3)])
        assert [await run.result() for run in many] == ["receipt 2 2", "receipt 3 3"]


async def test_what_needs_a_database_says_so() -> None:
    app = shop()
    with inline(app):
        with pytest.raises(BadInput, match=r"inline mode has no database.*list_schedules.*cluster\(app\)"):
            await app.schedules()
        with pytest.raises(BadInput, match="open already"), inline(app):
            pass
        assert datetime.now(UTC) - await app.store.now() < datetime.now(UTC) - datetime(2020, 1, 1, tzinfo=UTC)
