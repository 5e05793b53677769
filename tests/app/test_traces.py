"""Spans: one for each attempt, and the cluster context on every span that is started inside of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rota import Retry, Rota, RunFailed
from rota.context import leadership
from rota.contract.roles import Fence
from rota.telemetry.traces import ClusterContext, span_of_runs
from tests.patience import PATIENCE


class Recorded:
    """A tracer provider that a user might have set, and what it was told."""

    def __init__(self) -> None:
        self.provider, self._exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("shop")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    # The real one can be set only once in a process, and would stay for all other tests.
    made = Recorded()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made.provider)
    return made


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith("rota.")}


async def test_a_run_has_a_span_and_so_has_what_it_does(url: str, recorded: Recorded) -> None:
    app = Rota(url, replica="shop-1")

    async def pay() -> None:
        with recorded.tracer.start_as_current_span("pay"):
            await asyncio.sleep(0)

    @app.job()
    async def order() -> None:
        await asyncio.create_task(pay())

    @app.job()
    def print_label() -> None:
        with recorded.tracer.start_as_current_span("write"):
            pass

    with recorded.tracer.start_as_current_span("start"):
        async with app:
            runs = [await job.using(key=f"{job.name} 7").enqueue() for job in (order, print_label)]
            for run in runs:
                await run.result(PATIENCE)
            with recorded.tracer.start_as_current_span("outside"):
                pass
    for run, job, inner in zip(runs, ("order", "print_label"), ("pay", "write"), strict=True):
        [outer], [below] = recorded.spans(f"job {job}"), recorded.spans(inner)
        assert outer.parent is None
        assert outer.kind is SpanKind.CONSUMER
        assert outer.status.status_code is StatusCode.UNSET
        assert outer.context is not None
        assert below.parent is not None
        assert below.parent.span_id == outer.context.span_id
        assert attributes(outer) == attributes(below)
        assert attributes(outer) == {
            "rota.replica_id": outer.attributes["rota.replica_id"] if outer.attributes else None,
            "rota.replica": "shop-1", "rota.job": job, "rota.run_id": run.id, "rota.attempt": 1,
            "rota.idempotency_key": f"{job} 7", "rota.correlation_id": str(run.id),
        }  # fmt: skip
    assert attributes(recorded.spans("outside")[0]) == {}


async def test_each_attempt_has_a_span_and_a_failed_one_says_why(url: str, recorded: Recorded) -> None:
    app = Rota(url)

    @app.job(retry=Retry(attempts=1, base=0.01))
    async def order() -> None:
        raise ConnectionError("the partner is away")

    @app.job(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.job(transactional=True)
    async def booked() -> None: ...

    async with app:
        for job in (order, slow):
            with pytest.raises(RunFailed):
                await (await job.enqueue()).result(PATIENCE)
        await (await booked.enqueue()).result(PATIENCE)
    spans = recorded.spans("job order")
    assert [attributes(span)["rota.attempt"] for span in spans] == [1, 2]
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        assert "the partner is away" in (span.status.description or "")
        assert [event.name for event in span.events] == ["exception"]
    [timed_out] = recorded.spans("job slow")
    assert (timed_out.status.status_code, timed_out.status.description) == (StatusCode.ERROR, "CancelledError")
    assert len(recorded.spans("job booked")) == 1


async def test_a_span_leaves_nothing_behind_for_the_next_run(url: str, recorded: Recorded) -> None:
    app = Rota(url, concurrency=1)

    @app.job()
    async def order() -> None: ...

    async with app:
        for run in await app.enqueue_many([order.call() for _ in range(5)]):
            await run.result(PATIENCE)
    spans = recorded.spans("job order")
    assert len({attributes(span)["rota.run_id"] for span in spans}) == 5
    assert all(span.parent is None for span in spans)
    assert len({span.context.trace_id for span in spans if span.context}) == 5


def test_spans_inside_a_term_have_role_and_term(recorded: Recorded) -> None:
    recorded.provider.add_span_processor(ClusterContext())
    token = leadership.set(Fence(role="ledger", term=7, nonce=1))
    try:
        recorded.tracer.start_span("close the books").end()
    finally:
        leadership.reset(token)
    assert attributes(recorded.spans("close the books")[0]) == {"rota.role": "ledger", "rota.term": 7}


def test_an_app_that_is_opened_again_adds_nothing_to_the_provider(recorded: Recorded) -> None:
    assert span_of_runs() is not None
    processors = recorded.provider._active_span_processor._span_processors
    assert span_of_runs() is not None
    assert recorded.provider._active_span_processor._span_processors == processors


def test_where_nobody_listens_there_are_no_spans() -> None:
    assert span_of_runs() is None


async def test_without_opentelemetry_all_runs_as_before(url: str) -> None:
    script = (
        "import asyncio, sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from rota import Rota\n"
        "app = Rota(sys.argv[1])\n"
        "@app.job()\n"
        "async def order() -> str: return 'done'\n"
        "async def main():\n"
        "    async with app:\n"
        "        print(await (await order.enqueue()).result(60))\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, url], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
