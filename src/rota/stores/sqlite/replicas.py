"""Replicas on SQLite: who is here, what is done about the dead, and how commits are heard."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rota.store import HINTS, Buried, Hint, Lifeline, ReplicaRow
from rota.stores.sqlite import files
from rota.stores.sqlite.base import SQLiteBase
from rota.stores.sqlite.connection import translated
from rota.stores.sqlite.lifeline import SQLiteLifeline
from rota.stores.sqlite.session import Session, encode
from rota.stores.sqlite.times import from_text, shifted
from rota.stores.sqlite.watch import Watch

_SOON, _TOGETHER, _OFTEN, _SELDOM = 0.0005, 0.005, 0.02, 0.1


class SQLiteReplicas(SQLiteBase):
    async def join(self, name: str, host: str, pid: int, jobs: Sequence[str], resume: int | None = None) -> Lifeline:
        with translated(self.path):
            lifeline = SQLiteLifeline(self.path, self.settings)
        try:
            if resume is None or not await lifeline.resume(resume):
                await lifeline.enter(name, host, pid, encode(list(jobs)), self.tag)
        except BaseException:
            await lifeline.close()
            raise
        return lifeline

    async def leave(self, replica_id: int) -> Buried:
        def transition(db: Session) -> Buried:
            db.all("bury.remove", (encode([replica_id]),))
            return self._free(db, [replica_id], losses=0)

        return self._tidied(await self.write(transition))

    async def bury(self, dead: Sequence[int]) -> Buried:
        def transition(db: Session) -> Buried:
            # Looked at once more: one that came back holds its lock and beats.
            deadline = self._alive_since(db)
            gone = [
                replica_id
                for replica_id, stale, locked in db.all("bury.replicas", (encode(list(dead)), deadline))
                if stale or (locked and files.is_free(files.lock_path(self.path, replica_id)))
            ]
            db.all("bury.remove", (encode(gone),))
            return self._free(db, gone, losses=1)

        def nothing(db: Session) -> Buried | None:
            return None if dead or db.value("bury.any", (db.now(), self._alive_since(db))) else Buried()

        return self._tidied(await self.write(transition, unless=nothing))

    def _free(self, db: Session, ids: list[int], losses: int) -> Buried:
        """What these held, and what nobody holds any more, goes back."""
        now, alive, dead = db.now(), self._alive_since(db), encode(ids)
        claimed: list[tuple[int, int]] = []
        for token, runs in db.all("bury.claims", (dead,)):
            claimed += [(run_id, token) for run_id in msgspec.json.decode(runs)]
        values: dict[str, Any] = {"now": now, "alive": alive, "losses": losses, "claimed": encode(claimed)}
        back = db.all("bury.runs", values)
        requeued = tuple(run_id for run_id, state in back if state == "queued")
        cancelled = tuple(run_id for run_id, state in back if state == "cancelled")
        db.all("bury.answer", (encode(requeued + cancelled), dead))
        db.all("bury.keep", (encode(requeued),))
        db.all("bury.free", (encode(cancelled), now, alive))
        db.all("bury.ready", (encode(requeued),))
        return Buried(replicas=tuple(ids), requeued=requeued, cancelled=cancelled)

    def _alive_since(self, db: Session) -> str:
        return shifted(db.clocks()[1], -self.settings.dead_after)

    def _tidied(self, buried: Buried) -> Buried:
        files.remove(self.path, buried.replicas)
        return buried

    async def list_replicas(self) -> list[ReplicaRow]:
        return [
            ReplicaRow(id=i, name=n, host=h, pid=p, jobs=tuple(msgspec.json.decode(jobs)),
                       started_at=from_text(started), beat_at=from_text(beat), silent=silent)
            for i, n, h, p, jobs, started, beat, silent in await self.rows("list_replicas")
        ]  # fmt: skip

    async def hint(self, kind: Hint) -> None:
        """Nothing to do: the commit that the hint is about was the hint."""

    async def listen(self, heard: Callable[[Hint], None]) -> None:
        loop, stop, worker = asyncio.get_running_loop(), threading.Event(), self.new_worker()

        def announce(kinds: tuple[Hint, ...]) -> None:
            for kind in kinds:
                if not stop.is_set():
                    heard(kind)

        def changed(kinds: tuple[Hint, ...]) -> None:
            loop.call_soon_threadsafe(announce, kinds)

        announce(HINTS)
        try:
            with translated(self.path):
                await worker.run(lambda db: _listen(db, f"{self.path}-wal", stop, changed))
        finally:
            stop.set()
            worker.stop()


def _listen(db: Session, log: str, stop: threading.Event, changed: Callable[[tuple[Hint, ...]], None]) -> None:
    """The log is written before the commit can be seen: ask soon after, then later and later, until told again."""
    version, pause, heard_at = None, _SOON, 0.0
    news: tuple[Any, ...] | None = None
    with Watch(log) as watch:
        while not stop.is_set():
            if (current := db.value("hint.version")) != version:
                version, pause = current, _SOON
                before, [news] = news, db.all("hint.news")
                changed(_hints(before, news))
                # Commits that follow each other closely, ours mostly, are heard together.
                before_at, heard_at = heard_at, time.monotonic()
                if heard_at - before_at < 4 * _TOGETHER:
                    time.sleep(_TOGETHER)
            pause = _SOON if watch.wait(pause) else min(pause * 1.5, _SELDOM if watch.told else _OFTEN)


def _hints(before: tuple[Any, ...] | None, news: tuple[Any, ...]) -> tuple[Hint, ...]:
    """Every commit is heard, also a beat: what it cannot have been about must not set off another one."""
    kinds: list[Hint] = ["finished"]
    if news[0]:
        kinds.append("ready")
    if before is None or before[1:4] != news[1:4]:
        kinds.append("schedules")
    if news[4] is not None and (before is None or before[4] != news[4]):
        kinds.append("cancel")
    if before is None or before[5] != news[5]:
        kinds.append("roles")
    if before is None or before[6] != news[6]:
        kinds.append("locks")
    return tuple(kinds)
