"""The cluster context: at hand anywhere below a handler, and in every log record made there."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator

import pytest

from rota import Context, Retry, Rota, cluster_context
from rota.context import NAMES, leadership
from rota.contract.roles import Fence
from rota.telemetry.logs import ContextFilter, ContextFormatter, carry_context
from tests.patience import PATIENCE

log = logging.getLogger("shop.orders")


class Kept(logging.Handler):
    """Keeps the records, as a user's own handler would."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    handler.addFilter(ContextFilter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


def carried(record: logging.LogRecord) -> dict[str, object]:
    """The cluster context that a record has."""
    known = {name: getattr(record, f"rota_{name}") for name in NAMES}
    return {name: value for name, value in known.items() if value is not None}


async def test_everything_below_a_handler_has_its_context(url: str, kept: Kept) -> None:
    app = Rota(url, replica="shop-1")
    seen: dict[str, dict[str, str | int]] = {}

    def note(where: str) -> None:
        seen[where] = cluster_context()
        log.info(where)

    async def below() -> None:
        note("task")

    @app.job()
    async def handler(ctx: Context) -> int:
        note("handler")
        task = asyncio.create_task(below())
        await asyncio.gather(task, asyncio.to_thread(note, "a thread of the handler's"))
        return ctx.replica_id

    @app.job()
    def plain(ctx: Context) -> int:
        note("plain function")
        return ctx.replica_id

    async with app:
        runs = [await job.using(key=f"{job.name} 7", correlation_id="order-7").enqueue() for job in (handler, plain)]
        replica_id = await runs[0].result(PATIENCE)
        assert replica_id == await runs[1].result(PATIENCE)
        note("outside")
    expected = {
        job: {
            "replica_id": replica_id, "replica": "shop-1", "job": job, "run_id": run.id, "attempt": 1,
            "idempotency_key": f"{job} 7", "correlation_id": "order-7",
        }
        for job, run in zip(("handler", "plain"), runs, strict=True)
    }  # fmt: skip
    assert seen == {
        "handler": expected["handler"],
        "task": expected["handler"],
        "a thread of the handler's": expected["handler"],
        "plain function": expected["plain"],
        "outside": {},
    }
    assert {record.getMessage(): carried(record) for record in kept.records} == seen


async def test_runs_side_by_side_do_not_mix(url: str, kept: Kept) -> None:
    app = Rota(url)

    @app.job()
    async def handler(ctx: Context) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            log.info("%s", ctx.run_id)

    async with app:
        runs = await app.enqueue_many([handler.call() for _ in range(20)])
        for run in runs:
            await run.result(PATIENCE)
    assert len(kept.records) == 60
    assert all(record.getMessage() == str(carried(record)["run_id"]) for record in kept.records)


async def test_the_attempt_is_the_one_that_runs(url: str, kept: Kept) -> None:
    app = Rota(url)

    @app.job(retry=Retry(attempts=1, base=0.01))
    async def handler(ctx: Context) -> None:
        ctx.log.info("by the context's own logger")
        log.info("by the user's")
        if ctx.attempt == 1:
            raise ConnectionError

    own = Kept()
    logging.getLogger("rota.job").addHandler(own)
    logging.getLogger("rota.job").setLevel(logging.INFO)
    try:
        async with app:
            await (await handler.enqueue()).result(PATIENCE)
    finally:
        logging.getLogger("rota.job").removeHandler(own)
        logging.getLogger("rota.job").setLevel(logging.NOTSET)
    assert [carried(record)["attempt"] for record in kept.records] == [1, 2]
    assert [(record.__dict__["attempt"], record.__dict__["job"]) for record in own.records] == [
        (1, "handler"),
        (2, "handler"),
    ]


def test_inside_a_term_there_are_role_and_term() -> None:
    token = leadership.set(Fence(role="ledger", term=7, nonce=12345))
    try:
        assert cluster_context() == {"role": "ledger", "term": 7}
    finally:
        leadership.reset(token)
    assert cluster_context() == {}


@pytest.fixture
def line() -> Callable[..., str]:
    """What rota's own formatter makes of a record."""

    def write(**known: object) -> str:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(ContextFormatter("%(levelname)s %(message)s"))
        record = logging.LogRecord("shop", logging.INFO, "", 1, "sent", None, None)
        vars(record).update({f"rota_{name}": value for name, value in known.items()})
        handler.handle(record)
        return stream.getvalue()

    return write


def test_a_line_ends_in_what_is_known(line: Callable[..., str]) -> None:
    assert line(run_id=17, job="report", role=None) == "INFO sent [job=report run_id=17]\n"
    assert line() == "INFO sent\n"


def test_a_key_cannot_break_a_line(line: Callable[..., str]) -> None:
    assert line(idempotency_key="a\nERROR b") == 'INFO sent [idempotency_key="a\\nERROR b"]\n'


def test_the_trace_of_an_error_stays_below_the_line() -> None:
    formatter = ContextFormatter("%(message)s")
    try:
        raise ValueError("no")
    except ValueError as error:
        record = logging.LogRecord("shop", logging.INFO, "", 1, "sent", None, (ValueError, error, error.__traceback__))
    vars(record).update(rota_run_id=17)
    assert formatter.format(record).splitlines()[:2] == ["sent [run_id=17]", "Traceback (most recent call last):"]


def test_the_root_loggers_handlers_carry_the_context_once() -> None:
    handler, root = Kept(), logging.getLogger()
    root.addHandler(handler)
    before = {each: list(each.filters) for each in root.handlers}
    try:
        carry_context()
        carry_context()
        assert [type(each) for each in handler.filters] == [ContextFilter]
    finally:
        for each, filters in before.items():
            each.filters[:] = filters
        root.removeHandler(handler)
