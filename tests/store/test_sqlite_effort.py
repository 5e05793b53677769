"""What SQLite does for a batch, counted: statements, rows handed over, steps of its machine. No clock is looked at.

Each row that is fetched gives up the interpreter's lock; beside a busy event loop that costs up to 5 ms, so a batch is
not fetched row by row. And the effort is that of what is taken, not of what is stored.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from rota.store import Claim, NewRun, Outcome
from rota.stores.sqlite import SQLiteStore
from rota.stores.sqlite.session import QUERIES
from tests.store import steps
from tests.store.steps import decide

MILLION = 1_000_000
KNOWN = [f"known-{n}" for n in range(200)]
FILL = f"""
pragma synchronous = off;
begin;
insert into job_runs (id, job_id, correlation_id, priority, state, run_at, created_at)
with recursive n (x) as (select 1 union all select x + 1 from n where x < {MILLION})
select x, iif(x <= 500000, 'unknown', iif(x <= 700000, 'unknown-' || (x % 1000), 'known-' || (x % 200))),
       cast(x as text), 5, 'queued', '2020-01-01 00:00:00.000000', '2020-01-01 00:00:00.000000' from n;
insert into ready (job_id, rank, id, slot) select job_id, 0, id, 0 from job_runs order by job_id, id;
insert into scheduler_configs (job_id, name, cron, next_run_at)
with recursive n (x) as (select 1 union all select x + 1 from n where x < {MILLION})
select 'known-1', x, '0 0 * * *', case when x % 100000 = 0 then '2020-01-01 00:00:00.000000'
                                       else '2040-01-01 00:00:00.000000' end from n;
commit;
"""


class Effort:
    """What a store's connection did."""

    def __init__(self) -> None:
        self.statements: Counter[str] = Counter()
        self.rows = self.steps = self.scanned = 0

    def note(self, event: dict[str, Any]) -> None:
        if event["code"] == apsw.SQLITE_TRACE_ROW:
            self.rows += 1
        elif event["code"] == apsw.SQLITE_TRACE_PROFILE:
            self.statements[re.sub(r"--.*\n", "", event["sql"]).split()[0]] += 1
            self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
            self.scanned += event["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SQLiteStore]:
    async with steps.opened(f"sqlite:///{path}") as store:
        assert isinstance(store, SQLiteStore)
        yield store


@asynccontextmanager
async def effort(store: SQLiteStore) -> AsyncIterator[Effort]:
    found = Effort()
    both = apsw.SQLITE_TRACE_PROFILE | apsw.SQLITE_TRACE_ROW
    await store.read(lambda db: db.connection.trace_v2(both, found.note))
    yield found
    await store.read(lambda db: db.connection.trace_v2(0, None))


def outcomes(claims: list[Claim], **more: Any) -> list[Outcome]:
    return [Outcome(id=c.id, token=c.token, state="succeeded", slot=c.slot, **more) for c in claims]


# -- statements of a batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
def test_a_batch_of_500_takes_a_handful_of_statements(tmp_path: Path, plain: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path / "rota.db") as store:
            await store.claim_runs(1, 1, ["a"], 1)  # a first use reads the schema
            async with effort(store) as making:
                await store.enqueue([NewRun(job_id="a") for _ in range(500)])
            async with effort(store) as claiming:
                claims = (await store.claim_runs(1, 7, ["a", "b"], 500)).claims
            async with effort(store) as finishing:
                finished = await store.finish_runs(outcomes(claims, plain=plain), [7])
        assert (len(claims), len(finished.accepted)) == (500, 500)
        for seen, most in ((making, 10), (claiming, 9), (finishing, 9)):
            assert seen.statements["commit"] == 1
            assert sum(seen.statements.values()) <= most, seen.statements
            assert seen.rows <= 5, "a batch is handed over as one value, not row by row"

    asyncio.run(main())


def test_250_ticks_take_a_handful_of_statements(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "rota.db") as store:
            await store.write(lambda db: db.execute(
                "insert into scheduler_configs (job_id, name, cron, next_run_at) "
                "with recursive n (x) as (select 1 union all select x + 1 from n where x < 250) "
                "select 'a', x, '* * * * *', strftime('%Y-%m-%d %H:%M:00.000000', 'now') from n"
            ))  # fmt: skip
            async with effort(store) as firing:
                fired = await store.fire_due(decide, jobs=["a"], limit=250, advisory=True, leave=[])
        assert (fired.schedules, fired.ready, firing.statements["commit"]) == (250, 250, 1)
        # 250 rows are 7 statements (100, 100, and 5 of 10); there are three such writes.
        assert sum(firing.statements.values()) <= 30, firing.statements

    asyncio.run(main())


# -- a million rows ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A million ready runs, of which this replica knows the last 300,000, and a million schedules, ten of them due."""
    path = tmp_path_factory.mktemp("full") / "rota.db"

    async def main() -> None:
        async with opened(path) as store:
            await store.read(lambda db: db.execute(FILL))

    asyncio.run(main())
    yield path
    path.unlink()


def test_the_effort_is_that_of_what_is_taken(full: Path) -> None:
    async def main() -> None:
        async with opened(full) as store:
            async with effort(store) as making:
                await store.enqueue([NewRun(job_id="known-3") for _ in range(10)])
            async with effort(store) as claiming:
                claims = (await store.claim_runs(1, 7, KNOWN, 10)).claims
            async with effort(store) as looking:
                assert (await store.claim_runs(1, 8, ["nothing"], 10)).claims == []
            async with effort(store) as finishing:
                await store.finish_runs(outcomes(claims, plain=True), [7])
            async with effort(store) as firing:
                fired = await store.fire_due(decide, jobs=KNOWN, limit=100, advisory=True, leave=[])
                await store.agenda(KNOWN)
                await store.rows("hint.news")
                await store.rows("beat.news")
        assert [claim.id for claim in claims] == list(range(700_001, 700_011)), "best rank first, of all names"
        assert fired.schedules == 10
        for what, most in ((making, 5_000), (claiming, 40_000), (looking, 1_000), (finishing, 5_000), (firing, 20_000)):
            assert what.steps < most, what.statements
            assert what.scanned < 1_000, what.statements

    asyncio.run(main())


@contextmanager
def plan_of(path: Path, sql: str) -> Iterator[list[str]]:
    connection = apsw.Connection(str(path))
    try:
        # No parameter is needed to plan.
        yield [row[3] for row in connection.execute(f"explain query plan {sql}", apsw._null_bindings)]  # type: ignore[attr-defined]
    finally:
        connection.close()


ROW = "(1, 2, 3, 4, 5, 6, 7)"
ARMS = " union all ".join([QUERIES["claim_runs.arm"]] * 3)


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("claim_runs.any", "SEARCH ready USING PRIMARY KEY (job_id=?)"),
        ("claim_runs.look", "SEARCH ready EXISTS USING PRIMARY KEY (job_id=?)"),
        ("claim_runs.best", "MERGE (UNION ALL)"),
        ("claim_runs.pop", "SEARCH ready USING PRIMARY KEY (job_id=? AND (rank,id)<(?,?))"),
        ("claim_runs", "SEARCH job_runs USING INTEGER PRIMARY KEY (rowid=?)"),
        ("finish_runs.refused", "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)"),
        ("finish_runs.plain", "SEARCH job_runs USING INTEGER PRIMARY KEY (rowid=?)"),
        ("finish_runs.held", "SEARCH job_runs USING INTEGER PRIMARY KEY (rowid=?)"),
        ("enqueue.ready", "SEARCH job_runs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("enqueue.existing", "SEARCH job_runs USING INDEX job_runs_key (job_id=? AND idempotency_key=?)"),
        ("fire_due.any", "SEARCH scheduler_configs USING INDEX scheduler_configs_due (<expr><?)"),
        ("fire_due.claim", "SEARCH c USING INDEX scheduler_configs_order (priority=? AND <expr><?)"),
        ("fire_due.advance", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)"),
        ("hint.news", "SCAN scheduler_configs USING INDEX scheduler_configs_due"),
    ],
)
def test_the_hot_statements_walk_their_index(full: Path, name: str, uses: str) -> None:
    sql = QUERIES[name].replace("/* arms */", ARMS).replace("/* rows */", f"{ROW}, {ROW}")
    with plan_of(full, sql) as plan:
        assert any(line.startswith(uses) for line in plan), plan
        # A walk along an index that stops at the first row is a scan by name only; the effort is counted above.
        assert not [line for line in plan if re.match(r"SCAN (job_runs|scheduler_configs|r|c)$", line)], plan
        assert not [line for line in plan if "TEMP B-TREE" in line], plan
