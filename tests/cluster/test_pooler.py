"""Through a real PgBouncer: what is refused, and that both ways out work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from rota import Rota
from rota.errors import Misconfigured, PooledConnection
from rota.stores.postgres.route import Route, find_route
from tests.cli.calling import called
from tests.cluster.cluster import DEAD_AFTER, Cluster, Process, cluster, until
from tests.harness import Databases
from tests.patience import PATIENCE
from tests.pgbouncer import PgBouncer, pgbouncer

WAYS = ["control", "lease"]
PATIENT = 6.0


@pytest.fixture
def url(databases: Databases, tmp_path: Path) -> str:
    return databases.server().new_database()


@pytest.fixture
def transactions(databases: Databases) -> Iterator[PgBouncer]:
    with pgbouncer(databases.server(), "transaction") as made:
        yield made


def way(name: str, url: str) -> dict[str, str]:
    return {"ROTA_CONTROL_URL": url} if name == "control" else {"ROTA_ELECTOR": "lease"}


async def test_transaction_mode_is_refused_and_both_ways_out_are_named(url: str, transactions: PgBouncer) -> None:
    app = Rota(transactions.url(url))
    with pytest.raises(PooledConnection, match="transaction mode") as caught:
        async with app:
            pass
    for wayout in ("control_url=", "ROTA_CONTROL_URL", "elector lease", "ROTA_ELECTOR=lease"):
        assert wayout in str(caught.value)


async def test_many_who_ask_at_one_moment_all_see_transaction_mode(url: str, transactions: PgBouncer) -> None:
    for _ in range(40):
        asked = [find_route(transactions.url(url), "rota-test", timeout=10) for _ in range(3)]
        assert await asyncio.gather(*asked) == [Route.TRANSACTION] * 3


async def test_a_control_url_that_leads_through_it_as_well_is_refused(url: str, transactions: PgBouncer) -> None:
    pooled = transactions.url(url)
    with pytest.raises(PooledConnection, match="control_url leads through a pooler in transaction mode"):
        async with Rota(pooled, control_url=pooled):
            pass


async def test_statement_mode_is_refused(url: str, databases: Databases) -> None:
    with pgbouncer(databases.server(), "statement") as bouncer:
        with pytest.raises(PooledConnection, match="set its pool_mode to transaction or session"):
            async with Rota(bouncer.url(url), elector="lease"):
                pass


@pytest.mark.parametrize("server", ["postgres", "another"])
async def test_a_control_url_of_another_database_is_refused(
    url: str, databases: Databases, transactions: PgBouncer, server: str
) -> None:
    other = databases.server() if server == "postgres" else databases.server("another")
    with pytest.raises(Misconfigured, match=r"another database \(system .*\) than url \(system .*"):
        async with Rota(transactions.url(url), control_url=other.new_database()):
            pass


@pytest.mark.parametrize("name", WAYS)
async def test_the_whole_history_is_right_by_either_way_out(
    url: str, transactions: PgBouncer, tmp_path: Path, name: str
) -> None:
    it = Cluster(url, tmp_path, via=transactions.url(url), **way(name, url))
    try:
        await it.lay_out()
        await it.start(3)
        for _round in range(3):
            await until("some ticks", lambda: _ticks(it, it.count("Ready") * 10))
            victim = await until("one is inside a handler", partial(_busy, it))
            await victim.kill()
            await it.replace(victim)
            await until("it is buried", partial(_gone, it, victim.replica_id))
        locked = {bool(row[0]) for row in await it.sql("select locked from replicas")}
        assert locked == {name == "control"}
        await it.verdict()
        assert {len(replica.saw("HintsOff")) for replica in it.all} == {0 if name == "control" else 1}
        assert await it.value("select coalesce(sum(losses), 0) from job_runs") > 0, "no kill hit anything"
    finally:
        await it.close()


@pytest.mark.parametrize("name", WAYS)
async def test_a_killed_replica_is_noticed(url: str, transactions: PgBouncer, tmp_path: Path, name: str) -> None:
    """With a session of its own long before its silence tells."""
    dead_after = PATIENT if name == "control" else DEAD_AFTER
    silence = {"ROTA_LEASE": str(0.6 * dead_after), "ROTA_DEAD_AFTER": str(dead_after)}
    it = Cluster(url, tmp_path, via=transactions.url(url), **way(name, url), **silence)
    try:
        await it.lay_out([])
        await it.start(2)
        # Both die once: the caretaker, and the one that is looked after.
        for _ in range(2):
            await until("both may judge", lambda: _for(it, 1.2 * dead_after))
            run_id = await it.enqueue("nap", seconds=3)
            row = await it.reached(run_id, "running")
            [victim] = [each for each in it.replicas if each.replica_id == row["replica_id"]]
            await victim.kill()
            seconds = dead_after if name == "control" else 20.0
            await until("its run is with the other", partial(_moved, it, run_id, row["replica_id"]), seconds)
            await it.reached(run_id, "succeeded")
            await it.replace(victim)
        await it.stop()
    finally:
        await it.close()


async def test_session_mode_is_accepted(url: str, databases: Databases, tmp_path: Path) -> None:
    with pgbouncer(databases.server(), "session", default_pool_size="120") as bouncer:
        async with cluster(url, tmp_path, via=bouncer.url(url)) as it:
            await until("some ticks", lambda: _ticks(it, 20))
            assert await it.value("select count(*) from replicas where locked") == 3
            silence = "select count(*) from pg_locks l join pg_stat_activity a using (pid) where locktype = 'advisory'"
            assert await it.value(f"{silence} and a.application_name like 'rota-%'") >= 3
            await it.replicas[0].kill()
            await it.replace(it.replicas[0])
            await it.verdict()
            assert it.count("HintsOff") == 0


async def test_a_mixed_cluster_buries_its_dead(url: str, transactions: PgBouncer, tmp_path: Path) -> None:
    pooled = {"ROTA_URL": transactions.url(url), "ROTA_ELECTOR": "lease"}
    it = Cluster(url, tmp_path)
    try:
        await it.lay_out()
        await it.start(2)
        await it.start(2, **pooled)
        await until("some ticks", lambda: _ticks(it, 15))
        kinds = dict(await it.sql("select id, locked from replicas"))
        assert sorted(kinds.values()) == [False, False, True, True]
        for victim, environment in ((it.replicas[0], {}), (it.replicas[-1], pooled)):
            dead = victim.replica_id
            await victim.kill()
            await until("it is buried", partial(_gone, it, dead))
            await it.replace(victim, **environment)
        await it.verdict()
    finally:
        await it.close()


async def test_a_client_enqueues_and_waits_through_it(url: str, transactions: PgBouncer) -> None:
    worker, client = Rota(url), Rota(transactions.url(url))

    def double(n: int) -> int:
        return 2 * n

    worker.job("double")(double)
    job = client.job("double")(double)
    async with worker, client.client():
        made = await client.enqueue_many([job.call(n) for n in range(50)])
        assert [await run.result(timeout=PATIENCE) for run in made] == [2 * n for n in range(50)]


async def test_nothing_is_left_in_the_poolers_sessions(url: str, databases: Databases) -> None:
    with pgbouncer(databases.server(), "transaction", default_pool_size="1") as bouncer:
        app = Rota(bouncer.url(url), control_url=url)
        seen: list[tuple[str, ...]] = []

        @app.job(transactional=True)
        async def look(ctx: object) -> None:
            row = await ctx.connection.fetchrow(  # type: ignore[attr-defined]
                "select current_setting('synchronous_commit'), current_setting('lock_timeout')"
            )
            seen.append(tuple(row))

        async with app:
            await (await look.enqueue()).result(timeout=PATIENCE)
        assert seen == [("on", "5s")]
        shared = await asyncpg.connect(bouncer.url(url), statement_cache_size=0)
        try:
            async with shared.transaction():
                assert await shared.fetchval("select current_setting('lock_timeout')") == "0"
                assert await shared.fetchval("select count(*) from pg_prepared_statements where name <> ''") == 0
                own = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
                assert await shared.fetchval(own) == 0
        finally:
            await shared.close()


async def _ticks(it: Cluster, count: int) -> bool:
    return bool(await it.value("select count(*) from job_runs where due_at is not null") >= count)


async def _busy(it: Cluster) -> Process | None:
    return next((each for each in it.replicas if it.executing(each, ["steady", "child"])), None)


async def _moved(it: Cluster, run_id: int, before: int) -> bool:
    row = await it.run(run_id)
    return bool(row["state"] == "running" and row["replica_id"] != before)


async def _gone(it: Cluster, replica_id: int) -> bool:
    return not await it.sql(f"select id from replicas where id = {replica_id}")


async def _for(it: Cluster, seconds: float) -> bool:
    """All of them have been there for so long."""
    young = f"select 1 from replicas where started_at > clock_timestamp() - interval '{seconds} seconds'"
    return not await it.sql(young)


async def test_the_doctor_names_the_pooler_and_the_ways_out(url: str, transactions: PgBouncer) -> None:
    async with Rota(url).client():
        pass
    pooled = transactions.url(url)

    async def pooler(**environ: str) -> tuple[int, str]:
        said = await called("doctor", "--json", "--url", pooled, **environ)
        [found] = [finding for finding in said.data["findings"] if finding["check"] == "pooler"]
        return said.code, f"{found['level']}: {found['said']} {found['advice'] or ''}".strip()

    code, told = await pooler()
    assert (code, told.startswith("problem: in transaction mode")) == (1, True)
    assert "ROTA_CONTROL_URL" in told
    assert await pooler(ROTA_CONTROL_URL=url) == (0, "ok: in transaction mode; control_url goes past it")
    assert await pooler(ROTA_ELECTOR="lease") == (0, "ok: in transaction mode, with the elector lease")
