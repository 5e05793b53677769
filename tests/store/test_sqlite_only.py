"""What is particular to SQLite: files, text as time, file locks, one writer. The shared suite tests the contract.

The standard library's SQLite is used in processes of its own only: two copies in one process break each other's locks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from rota.errors import BadInput, Misconfigured, RotaError, SchemaMismatch, StoreUnavailable
from rota.settings import Settings
from rota.store import Declaration, JobRow, NewRun, RunFilter
from rota.stores.queries import load_migrations
from rota.stores.sqlite import SQLiteStore, base, connection, files
from rota.stores.sqlite.session import Session
from rota.stores.sqlite.times import from_text, to_text
from tests.patience import PATIENCE

T = TypeVar("T")
TYPED = "INSERT INTO scheduler_configs (job_id, name, cron, parameters) VALUES "
TYPED += """('job_ingest', 'default', '*/5 * * * *', '{"max_x": 20}')"""
QUICK = {"beat": 0.2, "lease": 1.0, "dead_after": 1.5}

REPLICA = """
import asyncio, json, sys
from rota.errors import StoreUnavailable
from rota.settings import Settings
from rota.stores.sqlite import SQLiteStore
async def main():
    store = SQLiteStore(Settings(url=sys.argv[1], **json.loads(sys.argv[2])))
    line = await store.join("child", "here", 1, ["a"])
    print(line.replica_id, (await line.beat(holding=False)).caretaker, flush=True)
    number, alive = line.replica_id, True
    while alive:
        await asyncio.sleep(0.1)
        try:
            alive = (await line.beat(holding=False)).alive
        except StoreUnavailable:  # frozen in the middle of one
            await line.close()
            line = await store.join("child", "here", 1, ["a"], resume=number)
            alive = line.replica_id == number
    print("deposed", flush=True)
asyncio.run(main())
"""
SHELL = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
print(json.dumps(connection.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))
"""
FORK = """
import os, sys, time
from rota.stores.sqlite.files import FileLock, is_free
lock = FileLock(sys.argv[1])
assert lock.take() and not FileLock(sys.argv[1]).take()
if os.fork() == 0:
    assert not is_free(sys.argv[1]), "the parent's lock went with the child's copy"
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


def path_of(folder: Path) -> str:
    return str(folder / "rota.db")


def store_at(folder: Path, **settings: Any) -> SQLiteStore:
    return SQLiteStore(Settings(url=f"sqlite:///{path_of(folder)}", **settings))


def using(folder: Path, use: Callable[[SQLiteStore], Awaitable[T]], **settings: Any) -> T:
    """Run a coroutine with a store that has its tables."""

    async def main() -> T:
        store = store_at(folder, **settings)
        await store.migrate()
        await store.open()
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(main())


class Refused(Exception):
    """The shell did not take it."""


Shell = Callable[..., list[list[Any]]]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """What an operator types into: the standard library's SQLite, on a file that has rota's tables."""
    asyncio.run(store_at(tmp_path).migrate())

    def typed(sql: str, *values: Any) -> list[list[Any]]:
        words = [sys.executable, "-c", SHELL, path_of(tmp_path), sql, json.dumps(values)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(done.stderr)
        rows: list[list[Any]] = json.loads(done.stdout)
        return rows

    return typed


# -- the file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.51.2", "3.9.9", "3.40.1"])
def test_a_sqlite_that_can_damage_the_file_is_refused(version: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"needs 3\.51\.3 or later"):
        connection.refuse_old(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_a_sqlite_that_cannot_is_not(version: str) -> None:
    connection.refuse_old(version)


def test_urls_name_files_relative_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert connection.database_path("sqlite:///a/b.db") == str(tmp_path / "a" / "b.db")
    assert connection.database_path("sqlite:////var/lib/b.db") == "/var/lib/b.db"


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite:////var/lib/"])
def test_urls_that_name_no_file_are_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="file"):
        SQLiteStore(Settings(url=url))


MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /data rw - nfs4 server:/export rw
31 22 0:41 / /data/local rw - xfs /dev/vdb rw
32 22 0:42 / /my\040share rw shared:5 - cifs //server/share rw
33 22 0:43 / /over rw - ext4 /dev/vdc rw
34 22 0:44 / /over rw - fuse.sshfs host: rw
broken line"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [("/", None), ("/data", "nfs4"), ("/data/x/y", "nfs4"), ("/data/local/x", None), ("/database", None),
     ("/my share/x", "cifs"), ("/over/x", "fuse.sshfs")],
)  # fmt: skip
def test_network_file_systems_are_told_by_the_innermost_mount(directory: str, kind: str | None) -> None:
    assert connection.network_filesystem(MOUNTS, directory) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "network_filesystem", lambda *_: "nfs4")
    with pytest.raises(StoreUnavailable, match=r"\(nfs4\).*local disk"):
        asyncio.run(store_at(tmp_path).open())


def test_a_fresh_file_has_no_version_and_says_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_at(tmp_path)
        await store.open()
        assert await store.schema_version() == (0, 0)
        with pytest.raises(SchemaMismatch, match="rota migrate"):
            await store.list_schedules()
        await store.close()

    asyncio.run(main())


@contextmanager
def somebody_else() -> Iterator[None]:
    """Root may write everything; be nobody for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("make", "says"),
    [(lambda db: db.parent.rmdir(), "no directory .*: create it"),
     (lambda db: db.mkdir(), "is a directory: name a file"),
     (lambda db: (db.write_text("no database " * 500), db.chmod(0o666)), "not a SQLite database: name another file"),
     (lambda db: db.touch(0o444), "is read-only for this user: make the file writable"),
     (lambda db: db.parent.chmod(0o555), "cannot be opened: give this user the right to write")],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_why_and_what_to_do(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    for folder in [tmp_path, *list(tmp_path.parents)[:3]]:
        folder.chmod(0o755)
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o777)
    make(place / "rota.db")
    with somebody_else(), pytest.raises(StoreUnavailable, match=says):
        asyncio.run(store_at(place).open())


def test_a_file_with_tables_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    theirs = apsw.Connection(path_of(tmp_path))
    theirs.execute("create table jobs (title text)")
    with pytest.raises(SchemaMismatch, match="a file of its own"):
        asyncio.run(store_at(tmp_path).migrate())
    assert theirs.execute("select name from sqlite_master").fetchall() == [("jobs",)]
    theirs.close()


def test_two_that_migrate_at_once_do_it_once(tmp_path: Path) -> None:
    async def main() -> list[list[str]]:
        return await asyncio.gather(*(store_at(tmp_path).migrate() for _ in range(4)))

    applied = [name for each in asyncio.run(main()) for name in each]
    assert sorted(applied) == [migration.name for migration in load_migrations("rota.stores.sqlite")]


# -- text as time --------------------------------------------------------------------------------------


def test_times_become_text_that_sorts_as_they_do() -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (0, 1, 999_999, 1_000_000, 86400)]
    assert sorted(map(to_text, moments)) == list(map(to_text, sorted(moments)))
    assert all(from_text(to_text(moment)) == moment for moment in moments)
    assert to_text(datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))) == "2025-12-31 23:00:00.000000"
    with pytest.raises(BadInput, match="no time zone"):
        to_text(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("typed", "kept"),
    [("2026-11-16 03:00:00", "2026-11-16 03:00:00.000000"), ("2026-11-16T03:00:00Z", "2026-11-16 03:00:00.000000"),
     ("2026-11-16 03:00", "2026-11-16 03:00:00.000000"), ("2026-11-16 03:00:00.5", "2026-11-16 03:00:00.500000"),
     ("2026-11-16T03:00:00+02:00", "2026-11-16 01:00:00.000000"),
     ("2026-02-31 03:00:00.000000", "2026-03-03 03:00:00.000000"),
     ("2026-11-16 03:00:00.123456", "2026-11-16 03:00:00.123456"), (None, None)],
)  # fmt: skip
def test_a_time_typed_by_hand_is_kept_so_that_it_sorts(shell: Shell, typed: str | None, kept: str | None) -> None:
    shell("insert into scheduler_configs (job_id, cron, next_run_at) values ('inserted', '', ?)", typed)
    shell(TYPED)
    shell("update scheduler_configs set next_run_at = ?, priority = 3 where job_id = 'job_ingest'", typed)
    assert shell("select next_run_at from scheduler_configs") == [[kept], [kept]]


@pytest.mark.parametrize("typed", ["soon", "5", "", "2026-13-01", "tomorrow 03:00"])
def test_what_is_no_time_is_refused(shell: Shell, typed: str) -> None:
    shell(TYPED)
    with pytest.raises(Refused, match="next_run_at is not a time"):
        shell("update scheduler_configs set next_run_at = ?", typed)


# -- what an operator types ------------------------------------------------------------------------------


def test_one_line_typed_by_hand_is_a_schedule(shell: Shell, tmp_path: Path) -> None:
    shell(TYPED)

    async def use(store: SQLiteStore) -> None:
        [schedule] = await store.list_schedules()
        assert (schedule.enabled, schedule.version, schedule.parameters) == (True, 0, '{"max_x": 20}')
        assert abs(await store.now() - schedule.created_at) < timedelta(seconds=30)
        seen: list[str] = []
        await store.fire_due(
            lambda _, due: seen.extend(d.job_id for d in due) or [],  # type: ignore[func-returns-value]
            jobs=["job_ingest"], limit=9, advisory=True, leave=[],
        )  # fmt: skip
        assert seen == ["job_ingest"]

    using(tmp_path, use)


@pytest.mark.parametrize(
    "typed",
    ["parameters = '[]'", "parameters = 'x'", "priority = 100", "priority = 'high'", "enabled = 2", "overlap = 'no'"],
)
def test_what_the_tables_do_not_allow_is_refused_in_the_shell_too(shell: Shell, typed: str) -> None:
    shell(TYPED)
    with pytest.raises(Refused):
        shell(f"update scheduler_configs set {typed}")


def test_an_edit_in_the_shell_counts_and_takes_effect(shell: Shell) -> None:
    def row() -> dict[str, Any]:
        names = [name for _, name, *_ in shell("pragma table_info(scheduler_configs)")]
        return dict(zip(names, shell("select * from scheduler_configs")[0], strict=True))

    shell(TYPED)
    shell("update clock set offset_seconds = 86400 * 365")
    shell("update scheduler_configs set next_run_at = '2026-11-16 03:00:00', invalid_reason = 'bad'")
    shell("update scheduler_configs set enabled = 0")
    paused = row()
    assert (paused["version"], paused["resumed_at"], paused["invalid_reason"]) == (1, None, "bad")
    assert from_text(paused["paused_at"]) - from_text(paused["created_at"]) > timedelta(days=364), "the moved clock"
    shell("update scheduler_configs set enabled = 1, parameters = '{}'")
    resumed = row()
    assert resumed["paused_at"] == paused["paused_at"] <= resumed["resumed_at"]
    assert (resumed["version"], resumed["invalid_reason"], resumed["next_run_at"]) == (2, None, paused["next_run_at"])
    shell("update scheduler_configs set cron = '1 * * * *', version = 9")
    moved = row()
    assert [moved[name] for name in ("version", "next_run_at", "paused_at", "resumed_at")] == [9, None, None, None]


def test_a_schedule_deleted_in_the_shell_leaves_its_runs_free_to_go_on(shell: Shell, tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        schedule = await store.put_schedule(Declaration(job_id="a", cron="@hourly"))
        made = [await store.trigger(schedule.id, None) for _ in range(2)]
        assert (await store.promote_due(9), await store.admit_waiting()) == (2, 1)
        shell("delete from scheduler_configs")
        assert [run.config_id for run in await store.get_runs([e.id for e in made])] == [None, None]
        assert await store.promote_due(9) == 1
        assert len((await store.claim_runs(1, 1, ["a"], 9)).claims) == 2

    using(tmp_path, use)


def test_a_row_in_schedule_holds_keeps_a_schedule_back(shell: Shell, tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        held, free = [await store.put_schedule(Declaration(job_id="a", name=n, cron="")) for n in ("held", "free")]
        shell("insert into schedule_holds (config_id, held_by) values (?, 'me')", held.id)
        seen: list[int] = []

        async def fire(advisory: bool) -> tuple[int, ...]:
            seen.clear()
            fired = await store.fire_due(
                lambda _, due: seen.extend(d.id for d in due) or [],  # type: ignore[func-returns-value]
                jobs=["a"], limit=9, advisory=advisory, leave=[],
            )  # fmt: skip
            return fired.contended

        assert (await fire(True), seen) == ((held.id,), [free.id])
        assert (await fire(False), seen) == ((), [held.id, free.id])
        shell("delete from schedule_holds")
        assert (await fire(True), seen) == ((), [held.id, free.id])

    using(tmp_path, use)


# -- the caller's own transaction ------------------------------------------------------------------------


def test_enqueue_is_part_of_the_callers_transaction(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        theirs = apsw.Connection(path_of(tmp_path))
        theirs.execute("create table orders (id integer)")
        for end, there in (("rollback", 0), ("commit", 1)):
            theirs.execute("begin; insert into orders values (1)")
            [made] = await store.enqueue([NewRun(job_id="a", key="k")], connection=theirs)
            with pytest.raises(BadInput, match="parameters is JSON"):
                await store.enqueue([NewRun(job_id="a"), NewRun(job_id="a", parameters="{")], connection=theirs)
            theirs.execute(end)
            assert [run.id for run in await store.find_runs(RunFilter())] == [made.id][:there]
        [again] = await store.enqueue([NewRun(job_id="a", key="k")], connection=theirs)
        assert (again.id, again.created, theirs.in_transaction) == (made.id, False, False)
        theirs.close()

    using(tmp_path, use)


def test_a_connection_to_something_else_is_refused(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        for theirs in (apsw.Connection(":memory:"), apsw.Connection(str(tmp_path / "other.db"))):
            with pytest.raises(BadInput, match="not on rota's file"):
                await store.enqueue([NewRun(job_id="a")], connection=theirs)
            theirs.close()
        with pytest.raises(BadInput, match=r"must be an apsw\.Connection, not object"):
            await store.enqueue([NewRun(job_id="a")], connection=object())
        second_copy = sqlite3.connect(":memory:")
        with pytest.raises(BadInput, match="do not see each other's locks"):
            await store.enqueue([NewRun(job_id="a")], connection=second_copy)
        second_copy.close()

    using(tmp_path, use)


# -- one writer at a time ----------------------------------------------------------------------------------


def test_a_cancelled_caller_leaves_no_transaction_open(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        def slow(db: Session) -> None:
            db.execute("insert into jobs (job_id) values ('slow')")
            signal.sigtimedwait([], 0.2)

        task = asyncio.create_task(store.write(slow))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.declare([JobRow(job_id="next")], [])
        assert await store.read(lambda db: db.execute("select job_id from jobs")) == [("next",), ("slow",)]

    using(tmp_path, use)


def test_of_writes_that_share_a_transaction_the_failing_one_is_undone_alone(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        bad = NewRun(job_id="a", parameters="{")
        batches = [[NewRun(job_id="a")], [NewRun(job_id="a"), bad], [NewRun(job_id="a")]]
        made = await asyncio.gather(*(store.enqueue(runs) for runs in batches), return_exceptions=True)
        assert [isinstance(result, BadInput) for result in made] == [False, True, False]
        assert len(await store.find_runs(RunFilter())) == 2

    using(tmp_path, use)


def test_a_writer_that_holds_on_too_long_makes_the_store_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "connect", lambda path: connection.connect(path, 0.2))

    async def use(store: SQLiteStore) -> None:
        line = await store.join("r", "h", 1, ["a"])
        [made] = await store.enqueue([NewRun(job_id="a")])
        [claim] = (await store.claim_runs(line.replica_id, 1, ["a"], 1)).claims
        async with store.transaction(claim):
            for attempt in (store.enqueue([NewRun(job_id="a")]), line.beat(holding=True)):
                with pytest.raises(StoreUnavailable, match="busy"):
                    await attempt
            assert [run.state for run in await store.get_runs([made.id])] == ["running"], "reading goes on"
        assert (await line.beat(holding=True)).alive
        await line.close()

    using(tmp_path, use, **QUICK)


def test_a_transaction_cancelled_while_it_waits_does_not_keep_the_lock(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        await store.enqueue([NewRun(job_id="a")])
        [claim] = (await store.claim_runs(1, 1, ["a"], 1)).claims
        other = apsw.Connection(path_of(tmp_path))
        other.execute("begin immediate")

        async def wait() -> None:
            async with store.transaction(claim):
                raise AssertionError("the lock was not free")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.1)
        task.cancel()
        other.execute("rollback")
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await asyncio.sleep(0.1)
        other.execute("begin immediate")
        other.close()

    using(tmp_path, use)


# -- life and death ----------------------------------------------------------------------------------------


@contextmanager
def child(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard_from(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await ask():
            await asyncio.sleep(0.1)


def test_a_replica_killed_is_found_by_its_lock_and_buried(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        mine = await store.join("parent", "here", 1, ["a"])
        mine.judges_from = 0.0  # as if it had beaten on time for long enough
        assert (await mine.beat(holding=False)).caretaker
        with child(REPLICA, store.settings.url, "{}") as process:
            number, caretaker = heard_from(process)
            await store.enqueue([NewRun(job_id="a")])
            [claim] = (await store.claim_runs(int(number), 7, ["a"], 1)).claims
            assert (caretaker, (await mine.beat(holding=False)).suspects) == ("False", ())
            assert (await store.bury([int(number)])).replicas == (), "it lives"
            process.kill()
            process.wait()
            assert (await mine.beat(holding=False)).suspects == (int(number),)
            buried = await store.bury([int(number)])
            assert (buried.replicas, buried.requeued) == ((int(number),), (claim.id,))
        assert os.listdir(f"{store.path}-replicas") == [f"{mine.replica_id}.lock"]
        await mine.close()

    using(tmp_path, use)


def test_a_frozen_caretaker_is_replaced_and_deposed(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        with child(REPLICA, store.settings.url, json.dumps(QUICK)) as process:
            number, caretaker = heard_from(process)
            assert caretaker == "True"
            mine = await store.join("parent", "here", 1, ["a"])
            assert not (await mine.beat(holding=False)).caretaker
            process.send_signal(signal.SIGSTOP)

            async def stale() -> bool:
                pulse = await mine.beat(holding=False)
                assert pulse.suspects == (), "its lock is held"
                return pulse.caretaker and pulse.stale == (int(number),)

            await until(stale)
            assert (await store.bury([int(number)])).replicas == (int(number),)
            process.send_signal(signal.SIGCONT)
            assert heard_from(process) == ["deposed"]
            await mine.close()

    using(tmp_path, use, **QUICK)


def test_one_that_was_late_itself_calls_nobody_stale(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        first, second = [await store.join(name, "here", 1, []) for name in ("first", "second")]
        await store.write(lambda db: db.execute("update replicas set beat_at = '2020-01-01 00:00:00.000000'"))
        late = await first.beat(holding=False)
        assert (late.alive, late.caretaker, late.stale, late.suspects) == (True, True, (), ())
        assert (await first.beat(holding=False)).stale == (), "it waits until the others have had their time"
        first.judges_from = 0.0
        assert (await first.beat(holding=False)).stale == (second.replica_id,)
        await store.write(lambda db: db.execute("update clock set offset_seconds = 86400"))
        await second.beat(holding=False)
        assert (await first.beat(holding=False)).stale == (), "the moved clock is not the clock of life"
        for line in (first, second):
            await line.close()

    using(tmp_path, use)


def test_a_forked_child_neither_frees_the_lock_nor_keeps_it(tmp_path: Path) -> None:
    path = str(tmp_path / "1.lock")
    with child(FORK, path) as process:
        [forked] = heard_from(process)
        try:
            assert not files.is_free(path)
            process.kill()
            process.wait()
            assert files.is_free(path), "the child, which lives on, kept it"
        finally:
            os.kill(int(forked), signal.SIGKILL)


def test_a_lock_is_asked_for_without_being_taken(tmp_path: Path) -> None:
    lock = files.FileLock(str(tmp_path / "1.lock"))
    assert files.is_free(lock.path), "a missing file is free"
    assert lock.take()
    assert not files.is_free(lock.path)
    lock.release()
    assert files.is_free(lock.path)
    assert files.FileLock(lock.path).take(), "asking left nothing behind"


def test_a_file_locked_by_an_older_database_is_passed_over(tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        os.mkdir(f"{store.path}-replicas")
        old = files.FileLock(files.lock_path(store.path, 1))
        assert old.take()
        line = await store.join("r", "h", 1, [])
        assert line.replica_id == 2
        await line.close()
        old.release()

    using(tmp_path, use)


def test_a_commit_of_anybody_is_heard(shell: Shell, tmp_path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        heard: list[str] = []
        task = asyncio.create_task(store.listen(heard.append))
        async with asyncio.timeout(PATIENCE):
            while len(heard) < 6:
                await asyncio.sleep(0.01)
        assert heard[:4] == ["ready", "schedules", "cancel", "finished"]
        heard.clear()
        await asyncio.to_thread(shell, TYPED)
        async with asyncio.timeout(PATIENCE):
            while "schedules" not in heard:
                await asyncio.sleep(0.01)
        assert "cancel" not in heard
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    using(tmp_path, use)


def test_every_error_is_a_sentence_of_rota(tmp_path: Path) -> None:
    with pytest.raises(RotaError):
        asyncio.run(store_at(tmp_path / "nowhere").migrate())
