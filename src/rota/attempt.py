"""Attempt: one try at one run, held by this replica; how it ends becomes its outcome."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from rota.context import Context, Member, Report
from rota.errors import BadParameters, Permanent
from rota.job import Job
from rota.store import Claim, NewRun, Outcome

StopReason = Literal["cancelled", "timeout", "shutdown", "lost"]
_ERROR_LENGTH = 8000
_MAX_RESULT = 1_000_000
_OURS = os.path.dirname(__file__) + os.sep


class Attempt(msgspec.Struct, eq=False, gc=False):
    """A claim being worked on. Like its context nothing for the garbage collector: it lets go of its task by itself."""

    claim: Claim
    job: Job[..., Any]
    context: Context
    started: float
    task: asyncio.Task[Any] | None = None
    stop_reason: StopReason | None = None
    settled: bool = False

    @classmethod
    def begun(
        cls, claims: Sequence[Claim], jobs: Mapping[str, Job[..., Any]], member: Member, report: Report
    ) -> list[Attempt]:
        """For each claim one, begun now."""
        now = time.monotonic()
        return [cls(claim, job := jobs[claim.job_id], Context(claim, member, report, job.app), now) for claim in claims]

    def stop(self, reason: StopReason) -> None:
        """Ask it to stop, once: an async handler gets CancelledError, a plain function has to see `ctx.stopping`."""
        if self.stop_reason is not None and reason != "lost":
            return
        self.stop_reason = reason
        self.context._stopping = True
        if self.task is not None:
            self.task.cancel()

    # -- outcomes ----------------------------------------------------------------------------------

    def succeeded(self, value: Any) -> Outcome:
        claim = self.claim
        if value is None:
            plain = self.job.policies.breaker is None
            return Outcome(id=claim.id, token=claim.token, state="succeeded", slot=claim.slot, plain=plain)
        try:
            encoded = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            return self.failed(Permanent(f"the result of {self.job.name!r} is not JSON: {error}"))
        if len(encoded) > _MAX_RESULT:
            return self.failed(
                Permanent(f"the result of {self.job.name!r} has {len(encoded):,} bytes, over {_MAX_RESULT:,}")
            )
        return self._outcome("succeeded", result=encoded.decode().replace("\\u0000", "\\ufffd"))

    def failed(self, error: BaseException) -> Outcome:
        text = _describe(error)
        pause = None
        if not isinstance(error, Permanent | BadParameters):
            pause = self.job.policies.retry.pause(self.claim.attempt, error)
        if pause is not None:
            return self._outcome("queued", error=text, delay=pause)
        return self._outcome("failed", error=text, then=self._failure_run(text))

    def stopped(self) -> Outcome | None:
        """How it ended when it was asked to stop and did; None when that is nobody's business any more."""
        if self.stop_reason == "timeout":
            return self.failed(TimeoutError(f"took longer than its {self.job.policies.timeout} s"))
        if self.stop_reason == "cancelled":
            return self._outcome("cancelled", error="cancelled on request")
        if self.stop_reason == "shutdown":
            return self.given_back()
        return None

    def given_back(self) -> Outcome:
        """The attempt does not count: somebody else may start it at once."""
        return self._outcome("queued", released=True)

    def _failure_run(self, text: str) -> NewRun | None:
        if self.job.failure_job is None:
            return None
        parameters = msgspec.json.encode({"run_id": self.claim.id, "error": text}).decode()
        return NewRun(
            job_id=self.job.failure_job,
            parameters=parameters,
            priority=self.job.policies.priority,
            correlation_id=self.claim.correlation_id,
            parent_id=self.claim.id,
        )

    def _outcome(self, state: Literal["succeeded", "failed", "cancelled", "queued"], **more: Any) -> Outcome:
        return Outcome(id=self.claim.id, token=self.claim.token, state=state, slot=self.claim.slot, **more)


def _describe(error: BaseException) -> str:
    """The last line first, since that is what people look for; the way there below it."""
    head = "".join(traceback.format_exception_only(error)).strip()
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_OURS):
        begin = begin.tb_next  # how rota came to call the handler tells its author nothing
    trail = "".join(traceback.format_tb(begin or error.__traceback__))
    text = f"{head}\n\n{trail}" if trail else head
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:_ERROR_LENGTH]
