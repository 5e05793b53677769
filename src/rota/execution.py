"""Execution: an attempt becomes an outcome. The handler is called in the context of its run, on a task or a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeAlias

from rota.attempt import Attempt
from rota.context import Context, _current
from rota.errors import Permanent, RunLost, StoreUnavailable
from rota.store import Claim, Outcome, Store

Span: TypeAlias = Callable[[Context], AbstractContextManager[object]]
"""What is put around each attempt, by whoever traces."""


class Execution:
    def __init__(
        self,
        store: Store,
        *,
        max_losses: int,
        span: Span | None,
        deadline: Callable[[Attempt, float], None],
        settle: Callable[[Attempt, Outcome | None], None],
    ) -> None:
        self._store, self._max_losses = store, max_losses
        self._deadline, self._settle = deadline, settle
        # Chosen once: who does not trace pays nothing for it.
        self.invoke: Callable[[Attempt], Any] = _invoke if span is None else partial(_invoke_in_span, span)
        self._loop = asyncio.get_running_loop()

    async def on_task(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """On a task of the lane, which goes on to the next attempt afterwards."""
        attempt.task = task
        token = _current.set(attempt.context)
        outcome: Outcome | None
        try:
            if attempt.stop_reason is not None:
                outcome = attempt.stopped()
            else:
                policies = attempt.job.policies
                if attempt.claim.losses >= self._max_losses:
                    raise _lost_too_often(attempt.claim)
                if policies.timeout is not None:
                    self._deadline(attempt, policies.timeout)
                if policies.transactional:
                    outcome = await self._in_transaction(attempt)
                else:
                    outcome = attempt.succeeded(await self.invoke(attempt))
        except GeneratorExit:
            raise
        except BaseException as error:
            outcome = _ended_by(attempt, error)
            if isinstance(error, asyncio.CancelledError) and attempt.stop_reason is None and task.cancelling():
                self._settle(attempt, outcome)
                raise  # it is the task that is to end: the handler has cancelled it, or the loop is being closed
        finally:
            attempt.task = None
            _current.reset(token)
        # A cancellation that the handler swallowed, or that came too late, is not meant for the next run.
        while task.cancelling():
            task.uncancel()
        self._settle(attempt, outcome)

    async def _in_transaction(self, attempt: Attempt) -> Outcome | None:
        """The handler's writes and the completion commit together, or not at all."""
        own: BaseException | None = None
        try:
            async with self._store.transaction(attempt.claim) as (connection, finish):
                attempt.context.connection = connection
                try:
                    outcome = attempt.succeeded(await self.invoke(attempt))
                except BaseException as error:
                    own = error
                    raise
                if outcome.state != "succeeded":
                    raise Permanent(outcome.error or "the result could not be stored")
                await finish(outcome)
        except RunLost:
            attempt.stop_reason = "lost"
        except StoreUnavailable as error:
            if error is own:
                raise
            # The transaction broke, not the handler. If it was committed all the same, this is refused as already done;
            # if not, nothing of it remains, and it is started again.
            return attempt.given_back()
        return None

    def on_thread(self, attempt: Attempt) -> Outcome | None:
        """On a thread of the lane, in a context of its own; the lane has it settled."""
        _current.set(attempt.context)
        try:
            if attempt.stop_reason is not None:
                return attempt.stopped()
            if attempt.claim.losses >= self._max_losses:
                raise _lost_too_often(attempt.claim)
            if (timeout := attempt.job.policies.timeout) is not None:
                with suppress(RuntimeError):  # the loop has ended, and nobody waits for this any more
                    self._loop.call_soon_threadsafe(self._deadline, attempt, timeout)
            return attempt.succeeded(self.invoke(attempt))
        except BaseException as error:  # also SystemExit: the thread is the lane's, not the function's
            return _ended_by(attempt, error)


def _ended_by(attempt: Attempt, error: BaseException) -> Outcome | None:
    """One that was asked to stop has stopped, whatever it made of that."""
    try:
        if attempt.stop_reason is None or (attempt.stop_reason == "timeout" and isinstance(error, Exception)):
            return attempt.failed(error)
        return attempt.stopped()
    except Exception as worse:  # of a policy or an error that is the user's own: it must not leave the run unsettled
        return attempt.failed(Permanent(f"{type(worse).__name__} in settling {type(error).__name__}: {worse}"))


def _invoke(attempt: Attempt) -> Any:
    arguments = attempt.job.arguments
    values = arguments.decode(attempt.claim.parameters)
    return attempt.job.fn(attempt.context, **values) if arguments.wants_context else attempt.job.fn(**values)


def _invoke_in_span(span: Span, attempt: Attempt) -> Any:
    if attempt.job.is_async:
        return _await_in_span(span, attempt)
    with span(attempt.context):
        return _invoke(attempt)


async def _await_in_span(span: Span, attempt: Attempt) -> Any:
    with span(attempt.context):
        return await _invoke(attempt)


def _lost_too_often(claim: Claim) -> Permanent:
    return Permanent(f"run {claim.id} was lost with its replica {claim.losses} times; it is not tried again")
