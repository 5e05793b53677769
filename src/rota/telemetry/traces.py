"""Attempts as spans of OpenTelemetry, and the cluster context on every span that is started inside of one.

Imported only where OpenTelemetry is installed (`rota[telemetry]`), and does nothing unless a tracer provider was set
before the app was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakSet

from opentelemetry import trace
from opentelemetry.context import Context as Ambient
from opentelemetry.trace import SpanKind, Status, StatusCode

from rota.context import Context, cluster_context

try:
    from opentelemetry.sdk.trace import SpanProcessor
except ModuleNotFoundError:  # the API alone: no spans are recorded that attributes could be put on
    SpanProcessor = object  # type: ignore[misc, assignment]

_extended: WeakSet[Any] = WeakSet()
"""Providers whose spans get the cluster context: a processor cannot be taken off again."""


class ClusterContext(SpanProcessor):
    """Puts `rota.run_id`, `rota.job` and so on, on every span that is started inside a run or a term.

    The provider that is set when an app opens has it; add it to others yourself.
    """

    def on_start(self, span: Any, parent_context: Ambient | None = None) -> None:
        span.set_attributes(_attributes())


def span_of_runs() -> Callable[[Context], AbstractContextManager[object]] | None:
    """What to put around each attempt; None when nobody listens."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    add = getattr(provider, "add_span_processor", None)
    if add is not None and provider not in _extended:
        _extended.add(provider)
        add(ClusterContext())
    tracer = provider.get_tracer("rota")

    @contextmanager
    def span(context: Context) -> Iterator[None]:
        # A root: the context of whoever opened the app is not that of its runs.
        with tracer.start_as_current_span(
            f"job {context.job}", context=Ambient(), kind=SpanKind.CONSUMER, attributes=_attributes()
        ) as made:
            try:
                yield
            except Exception:
                raise
            except BaseException as error:
                # Cancelled, timed out, or a SystemExit: no error for OpenTelemetry, but no success of the run either.
                made.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    return span


def _attributes() -> dict[str, str | int]:
    return {f"rota.{name}": value for name, value in cluster_context().items()}
