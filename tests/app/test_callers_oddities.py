"""Callers that are refused, callers that have set up their connections in ways of their own, and those that wait."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from rota import BadInput, Job, Misconfigured, NotOpen, Rota, SchemaMismatch, StoreUnavailable
from rota.stores.sqlite.caller import CallersSession, refuse_unable
from tests.app.callers import APSW, Django, calling, path_of
from tests.app.test_callers_transaction import UNHURRIED
from tests.harness import Databases, execute, ready
from tests.patience import PATIENCE

SECOND_COPY = "do not see each other's locks"


def declared(url: str, **settings: Any) -> tuple[Rota, Job[[str], str]]:
    app = Rota(url, **settings)

    @app.job()
    async def mail(to: str) -> str:
        return to

    return app, mail


@pytest.fixture
def sqlite(databases: Databases, tmp_path: Path) -> str:
    return databases.new("sqlite", tmp_path)


@pytest.fixture
def postgres(databases: Databases, tmp_path: Path) -> str:
    return databases.new("postgres", tmp_path)


async def tables(url: str) -> None:
    async with Rota(url).client():
        pass


# -- two copies of SQLite ------------------------------------------------------------------------------


async def test_a_second_copy_of_sqlite_is_refused_while_this_process_has_the_file_open(sqlite: str) -> None:
    app, mail = declared(sqlite)
    engine = sqlalchemy.create_engine(sqlite)
    async with app.client():
        with pytest.raises(BadInput, match=f"{SECOND_COPY}.*apsw.Connection, or run the replica in another process"):
            mail.using(connection=sqlite3.connect(path_of(sqlite))).enqueue_sync("ada")
        with engine.connect() as connection, pytest.raises(BadInput, match=SECOND_COPY):
            await mail.using(connection=connection).enqueue("ada")
        async with calling(Django, sqlite) as caller:
            with pytest.raises(BadInput, match=SECOND_COPY):
                await caller.enqueue(mail, "ada")
        engine.dispose()
    assert await execute(sqlite, "select count(*) from job_runs") == [(0,)]


async def test_rota_does_not_open_a_file_that_a_second_copy_has_open_here(sqlite: str) -> None:
    app, mail = declared(sqlite)
    await tables(sqlite)
    connection = sqlite3.connect(path_of(sqlite))
    run = mail.using(connection=connection).enqueue_sync("ada")
    connection.commit()
    with pytest.raises(Misconfigured, match=r"something else in this process has .*rota\.db open"):
        async with app:
            raise AssertionError("it opened")
    connection.close()
    async with app:
        assert await run.result(PATIENCE) == "ada"


def test_an_interpreter_whose_sqlite_cannot_read_the_tables_is_told_so() -> None:
    refuse_unable("3.40.1", "rota.db")
    with pytest.raises(StoreUnavailable, match=r"SQLite 3\.37\.2 cannot read the tables in rota\.db.*3\.38\.0"):
        refuse_unable("3.37.2", "rota.db")


async def test_an_old_sqlite_leaves_the_checkpoints_to_the_replicas(sqlite: str) -> None:
    _, mail = declared(sqlite)
    await tables(sqlite)
    connection = sqlite3.connect(path_of(sqlite))
    mail.using(connection=connection).enqueue_sync("ada")
    [(pages,)] = connection.execute("pragma wal_autocheckpoint").fetchall()
    assert (pages == 0) is (sqlite3.sqlite_version_info < (3, 51, 3))
    connection.close()


# -- connections that lead elsewhere, or nowhere -------------------------------------------------------


async def test_a_connection_to_another_database_is_refused(
    postgres: str, sqlite: str, databases: Databases, tmp_path: Path
) -> None:
    _, on_postgres = declared(postgres)
    _, on_sqlite = declared(sqlite)
    await tables(postgres)
    await tables(sqlite)
    (tmp_path / "other").mkdir()
    elsewhere = sqlite3.connect(tmp_path / "other" / "rota.db")
    with pytest.raises(BadInput, match=r"open on .*other/rota\.db, not on rota's file"):
        on_sqlite.using(connection=elsewhere).enqueue_sync("ada")
    with pytest.raises(BadInput, match="leads to sqlite, but the app's url to Postgres"):
        on_postgres.using(connection=elsewhere).enqueue_sync("ada")
    elsewhere.close()
    with psycopg.connect(databases.new("postgres", tmp_path)) as empty:
        with pytest.raises(SchemaMismatch, match=r"lacks rota's tables.*`rota migrate`"):
            on_postgres.using(connection=empty).enqueue_sync("ada")
        with pytest.raises(BadInput, match=r"leads to postgresql, but the app's url to .*rota\.db"):
            on_sqlite.using(connection=empty).enqueue_sync("ada")
    awaited = await asyncpg.connect(postgres)
    with pytest.raises(BadInput, match=r"leads to postgresql, but the app's url to .*rota\.db"):
        await on_sqlite.using(connection=awaited).enqueue("ada")
    await awaited.close()
    engine = sqlalchemy.create_engine(postgres.replace("postgresql:", "postgresql+psycopg:"))
    for job in (on_postgres, on_sqlite):
        with pytest.raises(BadInput, match=r"must be .*not sqlalchemy\.Engine; .*the connection that it gives you"):
            job.using(connection=engine).enqueue_sync("ada")  # type: ignore[arg-type]
    engine.dispose()


async def test_a_file_without_tables_says_what_to_do(sqlite: str) -> None:
    _, mail = declared(sqlite)
    connection = sqlite3.connect(path_of(sqlite))
    connection.execute("create table orders (id integer)")
    with pytest.raises(SchemaMismatch, match=r"lacks rota's tables.*`rota migrate`"):
        mail.using(connection=connection).enqueue_sync("ada")
    connection.close()


async def test_what_has_to_be_awaited_is_not_taken_by_who_cannot(postgres: str) -> None:
    _, mail = declared(postgres)
    await tables(postgres)
    connection = await asyncpg.connect(postgres)
    with pytest.raises(BadInput, match=r"asyncpg\.Connection has to be awaited: write `await job\.using"):
        mail.using(connection=connection).enqueue_sync("ada")
    await connection.close()


def test_without_a_connection_the_app_has_to_be_open(url: str) -> None:
    _, mail = declared(url)
    with pytest.raises(NotOpen):
        mail.enqueue_sync("ada")


# -- connections that their users have set up ----------------------------------------------------------


async def test_rows_codecs_and_cursors_of_the_callers_own_do_not_matter_on_postgres(postgres: str) -> None:
    _, mail = declared(postgres)
    await tables(postgres)
    ids = set()
    with psycopg.connect(
        postgres, row_factory=dict_row, cursor_factory=psycopg.RawCursor, options="-c search_path=pg_temp"
    ) as theirs:
        ids |= {mail.using(connection=theirs, key="%s").enqueue_sync("100%").id for _ in range(7)}
        with theirs.pipeline():
            ids.add(mail.using(connection=theirs, key="%s").enqueue_sync("100%").id)
    connection = await asyncpg.connect(postgres)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    ids.add((await mail.using(connection=connection, key="%s").enqueue("100%")).id)
    await connection.close()
    assert len(ids) == 1
    assert await execute(postgres, "select parameters::text from job_runs") == [('{"to":"100%"}',)]


async def test_rows_and_text_of_the_callers_own_do_not_matter_on_sqlite(sqlite: str) -> None:
    _, mail = declared(sqlite)
    await tables(sqlite)
    connection = sqlite3.connect(path_of(sqlite))
    connection.row_factory, connection.text_factory = (lambda cursor, row: {"row": row}), bytes
    ids = {mail.using(connection=connection, key="k").enqueue_sync("ada").id for _ in range(2)}
    connection.commit()
    connection.close()
    theirs = apsw.Connection(path_of(sqlite))
    theirs.row_trace = lambda cursor, row: {"row": row}
    ids.add(mail.using(connection=theirs, key="k").enqueue_sync("ada").id)
    assert list(theirs.execute("select 1")) == [{"row": (1,)}]
    theirs.close()
    assert len(ids) == 1


async def test_django_may_log_every_statement(url: str) -> None:
    _, mail = declared(url)
    await tables(url)
    async with calling(Django, url) as caller:
        caller.connection.force_debug_cursor = True
        await caller.enqueue(mail, "100%", key="%s")
        assert any("job_runs" in query["sql"] for query in caller.connection.queries)


async def test_sqlite3_begins_the_transaction_that_its_user_will_commit(sqlite: str) -> None:
    _, mail = declared(sqlite)
    await tables(sqlite)
    connection = sqlite3.connect(path_of(sqlite))
    mail.using(connection=connection).enqueue_sync("nobody")
    assert connection.in_transaction
    connection.close()
    assert await execute(sqlite, "select count(*) from job_runs") == [(0,)]


async def test_a_connection_that_is_not_async_serves_async_code_too(postgres: str) -> None:
    app, mail = declared(postgres, **UNHURRIED)
    async with app:
        engine = sqlalchemy.create_engine(postgres.replace("postgresql:", "postgresql+psycopg:"))
        with Session(engine) as session:
            run = await mail.using(connection=session).enqueue("ada")
            [more] = await app.enqueue_many([mail.call("grace")], connection=session)
            session.commit()
        engine.dispose()
        assert [await run.result(PATIENCE), await more.result(PATIENCE)] == ["ada", "grace"]


async def test_many_calls_of_one_list_have_one_connection(sqlite: str) -> None:
    app, mail = declared(sqlite)
    await tables(sqlite)
    async with calling(APSW, sqlite) as one, calling(APSW, sqlite) as other:
        with pytest.raises(BadInput, match="the same connection="):
            app.enqueue_many_sync([mail.using(connection=one.connection).call("a")], connection=other.connection)
        runs = app.enqueue_many_sync([mail.call("a"), mail.using(delay=60).call("b")], connection=one.connection)
    assert app.enqueue_many_sync([]) == []
    assert await execute(sqlite, "select id from job_runs order by id") == [(run.id,) for run in runs]


# -- trouble -------------------------------------------------------------------------------------------


async def test_the_drivers_own_error_comes_out_of_an_aborted_transaction(postgres: str) -> None:
    _, mail = declared(postgres)
    await tables(postgres)
    with psycopg.connect(postgres) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            mail.using(connection=connection).enqueue_sync("ada")
        connection.rollback()
        mail.using(connection=connection).enqueue_sync("ada")
    assert len(await ready(postgres)) == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_who_comes_second_with_a_key_waits_for_the_first_to_end(postgres: str, commits: bool) -> None:
    _, mail = declared(postgres)
    await tables(postgres)
    with psycopg.connect(postgres) as first, psycopg.connect(postgres) as second:
        one = mail.using(connection=first, key="k").enqueue_sync("ada")
        waiting = asyncio.create_task(
            asyncio.to_thread(lambda: mail.using(connection=second, key="k").enqueue_sync("grace"))
        )
        while not await execute(postgres, "select from pg_stat_activity where wait_event_type = 'Lock'"):
            assert not waiting.done()
            await asyncio.sleep(0.01)
        if commits:
            first.commit()
        else:
            first.rollback()
        two = await waiting
    assert (two.id == one.id, two.created) == (commits, not commits)
    assert await ready(postgres) == [two.id]


async def test_two_that_make_the_same_keys_in_opposite_orders_do_not_block_each_other(postgres: str) -> None:
    app, mail = declared(postgres)
    await tables(postgres)

    def make(*keys: str) -> list[bool]:
        with psycopg.connect(postgres) as connection:
            calls = [mail.using(key=key).call("ada") for key in keys]
            return [run.created for run in app.enqueue_many_sync(calls, connection=connection)]

    with psycopg.connect(postgres) as holds:
        mail.using(connection=holds, key="m").enqueue_sync("grace")
        both = [asyncio.create_task(asyncio.to_thread(make, *keys)) for keys in ("amz", "zma")]
        while len(await execute(postgres, "select from pg_stat_activity where wait_event_type = 'Lock'")) < 2:
            assert not any(one.done() for one in both)
            await asyncio.sleep(0.01)
        holds.rollback()
        assert sorted(await asyncio.gather(*both)) == [[False] * 3, [True] * 3]


async def test_a_commit_that_fails_leaves_no_transaction_to_who_began_none(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mail = declared(sqlite)
    await tables(sqlite)
    connection = sqlite3.connect(path_of(sqlite), isolation_level=None)
    plain = CallersSession.execute

    def full_disk(self: CallersSession, sql: str, values: Any = ()) -> Any:
        if sql == "commit":
            raise sqlite3.OperationalError("disk I/O error")
        return plain(self, sql, values)

    with monkeypatch.context() as trouble:
        trouble.setattr(CallersSession, "execute", full_disk)
        with pytest.raises(sqlite3.OperationalError, match="disk"):
            mail.using(connection=connection).enqueue_sync("ada")
    assert not connection.in_transaction
    connection.close()
    assert await execute(sqlite, "select count(*) from job_runs") == [(0,)]


# -- programs without an event loop --------------------------------------------------------------------

PROGRAM = """
import sys
from rota import Rota

app = Rota(sys.argv[1])

@app.job()
def mail(to: str) -> str:
    return to

def main() -> None:
    if sys.argv[1].startswith("sqlite"):
        import sqlite3
        connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"))
    else:
        import psycopg
        connection = psycopg.connect(sys.argv[1])
    mail.using(connection=connection).enqueue_sync("nobody")
    connection.rollback()
    run = mail.using(connection=connection).enqueue_sync("ada")
    more = app.enqueue_many_sync([mail.call("grace")], connection=connection)
    connection.commit()
    print(run.id, more[0].id)
    connection.close()

main()
"""


async def test_a_plain_program_commits_and_a_replica_elsewhere_runs_it_at_once(url: str, tmp_path: Path) -> None:
    app, _ = declared(url, **UNHURRIED)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    async with app:
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                [sys.executable, str(program), url], check=True, capture_output=True, text=True, timeout=120
            )
        )
        ids = [int(text) for text in done.stdout.split()]
        assert [await app.run(n).result(PATIENCE) for n in ids] == ["ada", "grace"]
        assert await execute(url, "select count(*) from job_runs") == [(2,)]
