"""A replica's own thread, connection and locked file: the beat.

A replica is dead when its file is not locked, or when its beat is stale. With the elector `lease` it has no locked
file, and the beat alone tells.
"""

from __future__ import annotations

import asyncio
import os

from rota.errors import StoreUnavailable
from rota.settings import Settings
from rota.store import Lifeline, Pulse
from rota.stores.sqlite import files
from rota.stores.sqlite.connection import connect, translated
from rota.stores.sqlite.session import Session
from rota.stores.sqlite.times import seconds_until, shifted
from rota.stores.sqlite.worker import Worker

_TRIES, _RESUME_TRIES = 100, 20


class SQLiteLifeline(Lifeline):
    def __init__(self, path: str, settings: Settings) -> None:
        super().__init__(settings)
        self.replica_id = 0
        found = os.stat(path)
        self.identity = f"file {found.st_dev}:{found.st_ino}"
        self._path = path
        self._worker = Worker(lambda: connect(path, settings.lease), "rota-lifeline")
        self._lock: files.FileLock | None = None
        self._locks = settings.elector != "lease"

    async def enter(self, name: str, host: str, pid: int, jobs: str, tag: str) -> None:
        """Take an id, lock its file, and only then show the row: nobody may find the row and the lock free."""
        with translated(self._path):
            self.replica_id = await self._take_lock()
            values = (self.replica_id, name, host, pid, jobs, tag, int(self._locks))
            await self._worker.write(lambda db: db.all("join", (*values, db.clocks()[1])))
            # Now that somebody knows these jobs, their schedules are looked at again.
            await self._worker.write(lambda db: db.all("declare.revalidate", (jobs,)))

    async def resume(self, replica_id: int) -> bool:
        """Lock the file of this process's own incarnation again; false when its row is gone."""
        path = files.lock_path(self._path, replica_id)
        files.release_own(path)
        with translated(self._path):
            for _ in range(_RESUME_TRIES):
                if not self._locks or self._lock_file(path):
                    break
                # Somebody looks at it, for a moment.
                await asyncio.sleep(0.05)
            else:
                return False
            if await self._worker.write(lambda db: db.all("join.resume", (replica_id, db.clocks()[1]))):
                self.replica_id = replica_id
                return True
        self._release()
        files.remove(self._path, (replica_id,))
        return False

    def _lock_file(self, path: str) -> bool:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = files.FileLock(path)
        if not lock.take():
            return False
        self._lock = lock
        return True

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    async def _take_lock(self) -> int:
        for _ in range(_TRIES):
            replica_id: int = await self._worker.write(lambda db: db.value("join.id"))
            # Somebody may still hold a file of this name, from a database that was here before: the next id then.
            if not self._locks or self._lock_file(files.lock_path(self._path, replica_id)):
                return replica_id
        raise StoreUnavailable(f"the files in {self._path}-replicas are locked by others: end those processes")

    async def beat(self, *, holding: bool) -> Pulse:
        with translated(self._path):
            try:
                async with asyncio.timeout(self._settings.lease):
                    return await self._worker.write(lambda db: self._beat(db, holding))
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"{self._path} was busy for {self._settings.lease} s: another process holds a write transaction; "
                    "end it, or make it shorter"
                ) from error

    async def close(self) -> None:
        self._release()
        self._worker.stop()

    def _beat(self, db: Session, holding: bool) -> Pulse:
        now, real = db.clocks()
        before = db.value("beat.before", (self.replica_id,))
        if before is None:
            return Pulse(alive=False)
        db.all("beat", (self.replica_id, real))
        if holding:
            db.all("beat.renew", (self.replica_id, now))
        may_judge = self._may_judge(seconds_until(real, before) or 0.0)
        caretaker = self._takes_care(db, real, may_judge)
        suspects, stale = self._look(db, real) if caretaker and may_judge else ((), ())
        [(ready, schedule, delayed, at_once, replicas)] = db.all("beat.news")
        return Pulse(
            alive=True,
            cancelled=tuple(run_id for (run_id,) in db.all("beat.cancelled", (self.replica_id,))),
            ready=bool(ready),
            due_in=0.0 if at_once else seconds_until(min((at for at in (schedule, delayed) if at), default=None), now),
            caretaker=caretaker,
            suspects=suspects,
            stale=stale,
            replicas=replicas,
        )

    def _takes_care(self, db: Session, real: str, may_judge: bool) -> bool:
        """Whether this one is the caretaker, or becomes it because the last one is gone.

        A row, not a locked file: a frozen caretaker would keep the file locked, and nobody could depose it.
        """
        [(holder, beat_at, locked)] = db.all("beat.caretaker")
        if holder == self.replica_id:
            return True
        stale = beat_at is None or (may_judge and beat_at < shifted(real, -self._settings.dead_after))
        if not stale and not (locked and files.is_free(files.lock_path(self._path, holder))):
            return False
        db.all("beat.take_care", (self.replica_id,))
        return True

    def _look(self, db: Session, real: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rows = db.all("beat.look", (self.replica_id, shifted(real, -self._settings.dead_after)))
        suspects = tuple(n for n, _, locked in rows if locked and files.is_free(files.lock_path(self._path, n)))
        return suspects, tuple(n for n, stale, _ in rows if stale)
