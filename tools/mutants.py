"""Break rota on purpose, one guard at a time, and see that a test notices.

Each variant is applied to a copy of the tree; the tests named with it must fail there. `python tools/mutants.py` tries
all of them, `python tools/mutants.py token clock` only those whose name contains a word. Exits with 1 if one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PG, LITE = "src/rota/stores/postgres", "src/rota/stores/sqlite"


@dataclass(frozen=True)
class Mutant:
    """A guard taken away: `before` becomes `after` in `file`; one of `tests` must fail."""

    name: str
    file: str
    before: str
    after: str
    tests: str


MUTANTS = [
    Mutant(
        "no unique key for a tick",
        f"{PG}/migrations/0001_engine.sql",
        "create unique index job_runs_tick",
        "create index job_runs_tick",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a schedule that was changed meanwhile is not noticed",
        f"{PG}/ticks.py",
        "if advanced != len(decisions):",
        "if False:",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "next_run_at advanced without a look at the version",
        f"{PG}/migrations/0001_engine.sql",
        "where c.id = f.id and c.version = f.version offset 0",
        "where c.id = f.id and f.version >= 0 offset 0",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a tick that somebody made by hand is counted again",
        f"{PG}/migrations/0001_engine.sql",
        "run_count = c.run_count + fresh::integer",
        "run_count = c.run_count + 1",
        "tests/store/test_stats.py -k 'by_hand and postgres and not postgres15'",
    ),
    Mutant(
        "the last run of a schedule is pruned",
        f"{PG}/queries/runs.sql",
        "where c.id = r.config_id) is distinct from r.id",
        "where c.id = r.config_id) is distinct from -r.id",
        "tests/store/test_stats.py -k 'pruned and postgres and not postgres15'",
    ),
    Mutant(
        "the last run of a schedule is pruned from a file",
        f"{LITE}/queries/runs.sql",
        "where c.id = r.config_id) is not id",
        "where c.id = r.config_id) is not -id",
        "tests/store/test_stats.py -k 'pruned and sqlite'",
    ),
    Mutant(
        "a completion is accepted from whoever comes",
        f"{PG}/queries/runs.sql",
        "where r.id = i.id and r.lock_token = i.token and r.state = 'running'\n    returning r.id, r.job_id",
        "where r.id = i.id\n    returning r.id, r.job_id",
        "tests/cluster/test_freeze.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "no room in an index for the next version of a schedule",
        f"{PG}/migrations/0001_engine.sql",
        "primary key with (fillfactor = 45)",
        "primary key",
        "tests/store/test_postgres_effort.py -k 'room_in and not postgres15'",
    ),
    Mutant(
        "plain finish without the token (Postgres)",
        f"{PG}/queries/runs.sql",
        "(r.id, r.lock_token) in (select i.* from given, unnest(ids, tokens) as i)",
        "r.id in (select unnest(ids) from given)",
        "tests/store/test_plain_outcomes.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a second try of enqueue takes everything for new",
        f"{PG}/enqueue.py",
        "lambda: self._enqueue(ids, runs, _KNOWN)",
        "lambda: self._enqueue(ids, runs, _FRESH)",
        "tests/store/test_postgres_only.py",
    ),
    Mutant(
        "a connection on which nobody answers is kept",
        f"{PG}/pool.py",
        "                elif seen.since <= now - most:\n                    connection.terminate()\n",
        "",
        "tests/store/test_postgres_pool.py",
    ),
    Mutant(
        "a transaction is ended though it is answered",
        f"{PG}/pool.py",
        "            if seen is None or seen.statements != statements:\n",
        "            if seen is None:\n",
        "tests/store/test_postgres_pool.py",
    ),
    Mutant(
        "one hint follows the other in a stream",
        "src/rota/hinter.py",
        "            started, wanted, self._wanted = steady(), self._wanted, set()\n",
        "            started, wanted = steady(), iter(lambda: self._wanted.pop() if self._wanted else None, None)\n",
        "tests/unit/test_hinter.py",
    ),
    Mutant(
        "one that is silent halfway through a statement keeps its role",
        f"{PG}/base.py",
        '                    await self.fetch("win_role.end_silent")\n',
        "                    await asyncio.sleep(0)\n",
        "tests/store/test_postgres_roles.py",
    ),
    Mutant(
        "a tick that has begun waits for a slot",
        "src/rota/scheduler.py",
        "fired.runs > fired.ready + len(fired.claims)",
        "fired.runs > fired.ready",
        "tests/unit/test_scheduler.py",
    ),
    Mutant(
        "places are asked for when the tick is due, and not before",
        "src/rota/scheduler.py",
        "        offer = self._hands.offer(self._batch)\n",
        "        await __import__('asyncio').sleep(ahead)\n"
        "        offer, ahead = self._hands.offer(self._batch), 0.0\n",
        "tests/unit/test_scheduler.py",
    ),
    Mutant(
        "what was started for one that is gone is nobody's",
        f"{PG}/queries/replicas.sql",
        " or not exists (select from rota.replicas r where r.id = c.replica_id)\n    returning c.token",
        "\n    returning c.token",
        "tests/store/test_starts.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "all go for every tick",
        "src/rota/race.py",
        "        self.first = won or random.random() * self.replicas < 1\n",
        "",
        "tests/unit/test_race.py",
    ),
    Mutant(
        "nobody looks after a tick that was left to others",
        "src/rota/race.py",
        "        return due_in + BEHIND\n",
        "        return due_in + 60\n",
        "tests/unit/test_race.py",
    ),
    Mutant(
        "a beat wakes no scheduler that would be late",
        "src/rota/scheduler.py",
        "        if self.rests_until > time.monotonic() + max(seconds, 0.0) + 2 * BEHIND:\n",
        "        if False:\n",
        "tests/unit/test_scheduler.py",
    ),
    Mutant(
        "the dead are next in line until they are buried",
        f"{PG}/queries/roles.sql",
        "    from judged where roles <> '[]' and alive\n",
        "    from judged where roles <> '[]'\n",
        "tests/store/test_roles.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the dead are next in line until they are buried, SQLite",
        f"{LITE}/roles.py",
        "            if self._alive(n, beat_at, locked, real)\n",
        "",
        "tests/store/test_roles.py -k sqlite",
    ),
    Mutant(
        "the sessions of the dead are left alone",
        f"{PG}/replicas.py",
        '        await self._end_sessions(await self.fetch("bury.dead", *judged))\n',
        "",
        "tests/store/test_postgres_roles.py",
    ),
    Mutant(
        "one that cannot end the silent gives up",
        f"{PG}/base.py",
        "                with suppress(RotaError):  # it may help, and need not\n",
        "                with suppress(ZeroDivisionError):\n",
        "tests/store/test_postgres_roles.py",
    ),
    Mutant(
        "sessions that the dead has again are left alone",
        f"{PG}/replicas.py",
        "            await self._end_sessions(gone, on=connection)\n",
        "",
        "tests/store/test_postgres_roles.py",
    ),
    Mutant(
        "a beat walks over all that was claimed",
        f"{PG}/queries/replicas.sql",
        "order by r.job_id desc, r.rank desc, r.id desc limit 1",
        "order by r.job_id, r.rank, r.id limit 1",
        "tests/store/test_postgres_plans.py -k beats_way",
    ),
    Mutant(
        "one look that took long is a reason",
        f"{PG}/front.py",
        "min(before, self._took) / _SHARE",
        "self._took / _SHARE",
        "tests/unit/test_front.py",
    ),
    Mutant(
        "a connection that was at hand takes no place",
        f"{PG}/pool.py",
        "        self._value -= 1\n",
        "",
        "tests/store/test_postgres_pool.py",
    ),
    Mutant(
        "deadlines of what is settled pile up",
        "src/rota/deadlines.py",
        "[entry for entry in self._heap if not entry[2].settled]",
        "[entry for entry in self._heap]",
        "tests/unit/test_deadlines.py",
    ),
    Mutant(
        "a deadline that is sooner than the others waits for them",
        "src/rota/deadlines.py",
        "            self._sooner.set_here()\n",
        "            pass\n",
        "tests/unit/test_deadlines.py",
    ),
    Mutant(
        "an outcome leaves the outbox before the store has answered",
        "src/rota/outbox.py",
        "            finished = await self._finish(batch, used_up)\n"
        "            del self._outcomes[: len(batch)], self._used_up[: len(used_up)]\n",
        "            del self._outcomes[: len(batch)], self._used_up[: len(used_up)]\n"
        "            finished = await self._finish(batch, used_up)\n",
        "tests/cluster/test_commit_cut.py -k connections",
    ),
    Mutant(
        "one run whose reply was lost is made again",
        f"{PG}/enqueue.py",
        "            return await pg.retried(lambda: self._enqueue(ids, runs, _KNOWN))\n",
        "            return await self.enqueue(runs)\n",
        "tests/store/test_postgres_only.py -k lost",
    ),
    Mutant(
        "a lock that was waited for in vain fails one run",
        f"{PG}/enqueue.py",
        "            except pg.TRANSIENT:\n                pass\n",
        "            except ZeroDivisionError:\n                pass\n",
        "tests/store/test_postgres_only.py -k making",
    ),
    Mutant(
        "priorities are found over what was just advanced",
        f"{PG}/migrations/0001_engine.sql",
        "c.priority < step.priority order by c.priority desc limit 1)",
        "c.priority < step.priority order by c.priority limit 1)",
        "tests/store/test_postgres_plans.py -k nobodys",
    ),
    Mutant(
        "a replica that was fast stays greedy",
        "src/rota/outbox.py",
        "            self._looked()\n",
        "",
        "tests/app/test_lanes.py",
    ),
    Mutant(
        "delayed runs wait until a rush of schedules is over",
        "src/rota/scheduler.py",
        " or time.monotonic() - self._asked_at > _ASK_EVERY",
        "",
        "tests/unit/test_scheduler.py",
    ),
    Mutant(
        "a rush of schedules is never over",
        "src/rota/scheduler.py",
        "            self._more = fired.schedules == self._batch\n",
        "            self._more = True\n",
        "tests/unit/test_scheduler.py",
    ),
    Mutant(
        "a claim is cut off at the stop",
        "src/rota/worker.py",
        "        if claiming:\n",
        "        if False:\n",
        "tests/app/test_oddities.py -k under_way_at_the_stop",
    ),
    Mutant(
        "runs are begun while no outcome is taken",
        "src/rota/claimer.py",
        "if self._more and room and not self._taker.full and",
        "if self._more and room and",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "nobody tells the claimer of plain functions",
        "src/rota/claimer.py",
        "                self.then.wake()\n",
        "                pass\n",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "plain functions wait for an answer about async handlers",
        "src/rota/claimer.py",
        "        if self.then and self.lane.asked:\n",
        "        if False:\n",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "what was to be looked at again is forgotten with a claim that failed",
        "src/rota/claimer.py",
        "self._more = again = self._more or claimed.more",
        "self._more = again = claimed.more",
        "tests/unit/test_worker.py -k not_forgotten",
    ),
    Mutant(
        "ticks are begun while no outcome is taken",
        "src/rota/worker.py",
        "if (replica_id := self._standing.number()) and not (self._standing.ending or self.full):",
        "if (replica_id := self._standing.number()) and not self._standing.ending:",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "the garbage collector walks through contexts",
        "src/rota/context.py",
        "class Context(msgspec.Struct, eq=False, gc=False):",
        "class Context(msgspec.Struct, eq=False):",
        "tests/app/test_jobs.py -k sees_its_context",
    ),
    Mutant(
        "a dense stream of hints is as frequent as a sparse one",
        "src/rota/hinter.py",
        "2 * _MOMENT if self._count > _MUCH else _MOMENT",
        "_MOMENT",
        "tests/unit/test_hinter.py",
    ),
    Mutant(
        "commits that are told of wait for one another",
        f"{PG}/migrations/0001_engine.sql",
        "        commit;\n",
        "        perform pg_notify('rota', 'ready');\n        commit;\n",
        "tests/store/test_postgres_only.py -k word_goes_out",
    ),
    Mutant(
        "a word that failed is a run that failed",
        f"{PG}/enqueue.py",
        "                tried = tell and isinstance(error, asyncpg.PostgresError)\n",
        "                tried = False\n",
        "tests/store/test_postgres_only.py -k could_not_be_told",
    ),
    Mutant(
        "a commit that waits for a standby is cut short",
        f"{PG}/migrations/0001_engine.sql",
        "    told := made and current_setting('synchronous_standby_names') = '';\n",
        "    told := made;\n",
        "tests/store/test_postgres_standby.py",
    ),
    Mutant(
        "a run waits for whoever keeps others from notifying",
        f"{PG}/migrations/0001_engine.sql",
        "        set local lock_timeout = '50ms';",
        "        ",
        "tests/store/test_postgres_standby.py",
    ),
    Mutant(
        "a context that is kept keeps its app",
        "src/rota/worker.py",
        "        attempt.context._leave()\n",
        "",
        "tests/app/test_jobs.py -k let_go",
    ),
    Mutant(
        "whoever could not tell tries again and again",
        "src/rota/hinter.py",
        "        self._leads_from = steady() + _NO_LEAD\n",
        "",
        "tests/unit/test_hinter.py",
    ),
    Mutant(
        "whoever leads begins no moment",
        "src/rota/hinter.py",
        "        self._quiet_until = self._led_until = now + _MOMENT\n",
        "",
        "tests/unit/test_hinter.py",
    ),
    Mutant(
        "nobody says that outcomes are taken again",
        "src/rota/worker.py",
        "        self.learn()\n        self._look_again()\n",
        "        self.learn()\n",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "a lane learns only when outcomes are answered",
        "src/rota/claimer.py",
        "            self._taker.learn()\n",
        "",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "one that is being buried wins a role",
        f"{PG}/queries/roles.sql",
        "where id = $2 for key share",
        "where id = $2",
        "tests/store/test_postgres_roles.py -k buried",
    ),
    Mutant(
        "a reset takes its rows in another order than a fenced write",
        f"{PG}/queries/singletons.sql",
        "where s.name = $1 and (select count(*) from deposed) >= 0",
        "where s.name = $1",
        "tests/store/test_postgres_roles.py -k reset",
    ),
    Mutant(
        "one that resumes ends the sessions of those that look",
        f"{PG}/queries/replicas.sql",
        "    and mode = 'ExclusiveLock'\n",
        "",
        "tests/store/test_postgres_roles.py -k resumes",
    ),
    Mutant(
        "a busy pooler that gives the session back is taken for one in session mode",
        f"{PG}/route.py",
        " or last not in (said, None):",
        ":",
        "tests/unit/test_pool_mode.py tests/cluster/test_pooler.py -k 'comes_back or one_moment'",
    ),
    Mutant(
        "the server gives up a session before its replica does",
        f"{PG}/replicas.py",
        '"tcp_user_timeout": str(patience),',
        '"tcp_user_timeout": "5000",',
        "tests/store/test_postgres_roles.py -k server_does_not",
    ),
    Mutant(
        "a second cancellation ends the stop",
        "src/rota/app.py",
        "        except asyncio.CancelledError as error:\n            cancelled = error\n",
        "        except asyncio.CancelledError:\n            raise\n",
        "tests/app/test_oddities.py -k however_often",
    ),
    Mutant(
        "the pool closes on what is under way",
        f"{PG}/pool.py",
        "async with asyncio.timeout(_GRACE):",
        "async with asyncio.timeout(0):",
        "tests/store/test_postgres_pool.py",
    ),
    Mutant(
        "a connection that was cut off is used again",
        f"{PG}/pool.py",
        "if cut_off or self._closed",
        "if self._closed",
        "tests/store/test_postgres_pool.py",
    ),
    Mutant(
        "a refused plain success frees the slot",
        f"{PG}/queries/runs.sql",
        "and case when l.lock_token in (select id from done) then true else false end",
        "",
        "tests/store/test_plain_outcomes.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "finish without the token (Postgres)",
        f"{PG}/queries/runs.sql",
        "where r.id = i.id and r.lock_token = i.token and r.state = 'running'\n    returning",
        "where r.id = i.id and r.state = 'running'\n    returning",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a claim keeps the old token",
        f"{PG}/queries/runs.sql",
        "set state = 'running', lock_token = $1,",
        "set state = 'running', lock_token = coalesce(r.lock_token, $1),",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "what is left of a handful is left as it was",
        f"{PG}/queries/runs.sql",
        "set id = c.ids[c.part + 1], ids = c.ids[c.part + 1:]",
        "set id = c.ids[c.part + 1]",
        "tests/store/test_handfuls.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "what is left of a handful is found under one that is gone",
        f"{PG}/queries/runs.sql",
        "set id = c.ids[c.part + 1], ids = c.ids[c.part + 1:]",
        "set ids = c.ids[c.part + 1:]",
        "tests/store/test_handfuls.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "nobody says that others are at it",
        f"{PG}/claim.py",
        "more=found == rows or runs >= limit or unseen, busy=busy)",
        "more=found == rows or runs >= limit or unseen)",
        "tests/store/test_handfuls.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a claim that found as many rows as it looked for says that there are no more",
        f"{PG}/claim.py",
        "more=found == rows or runs >= limit or unseen, busy=busy)",
        "more=runs >= limit or unseen, busy=busy)",
        "tests/store/test_handfuls.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "one that is wanted again may still be in what others left",
        f"{PG}/runs.py",
        'for statement in ("retry_run.fewer", "retry_run.none"):',
        'for statement in ("retry_run.none",):',
        "tests/store/test_handfuls.py -k cancelled",
    ),
    Mutant(
        "the last one of a handful that is wanted again may still be there",
        f"{PG}/runs.py",
        'for statement in ("retry_run.fewer", "retry_run.none"):',
        'for statement in ("retry_run.fewer",):',
        "tests/store/test_handfuls.py -k cancelled",
    ),
    Mutant(
        "what others let go before the front is not looked for",
        f"{PG}/claim.py",
        "        if start != _FIRST:\n",
        "        if False:\n",
        "tests/store/test_handfuls.py -k before_the_front",
    ),
    Mutant(
        "of more than sixteen jobs some are not looked for",
        f"{PG}/claim.py",
        "runs >= limit or unseen, busy=busy)",
        "runs >= limit, busy=busy)",
        "tests/store/test_handfuls.py -k merged",
    ),
    Mutant(
        "what others leave is not looked for",
        "src/rota/claimer.py",
        "        if busy and self._soon is None:\n",
        "        if False:\n",
        "tests/unit/test_worker.py",
    ),
    Mutant(
        "one that is cancelled stays with those that it was made with",
        f"{PG}/queries/runs.sql",
        "where r.ctid = place and others <> '{}'",
        "where r.ctid = place and others = '{}'",
        "tests/store/test_handfuls.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the claim of one does not look at the state",
        f"{PG}/migrations/0001_engine.sql",
        "    where r.id = claim_one.id and r.state = 'queued'\n",
        "    where r.id = claim_one.id\n",
        "tests/store/test_claims.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the claim of one keeps the old token",
        f"{PG}/migrations/0001_engine.sql",
        "set state = 'running', lock_token = token,",
        "set state = 'running', lock_token = coalesce(r.lock_token, token),",
        "tests/store/test_claims.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the claim of one leaves no claim behind",
        f"{PG}/migrations/0001_engine.sql",
        "    insert into rota.claims (token, replica_id, ids) values (token, replica, array[claim_one.id]);\n",
        "",
        "tests/store/test_claims.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the claim of one does not hold its slot",
        f"{PG}/migrations/0001_engine.sql",
        "    if slot then\n        update rota.scheduler_locks l",
        "    if false then\n        update rota.scheduler_locks l",
        "tests/store/test_claims.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the claim of one takes the first of several",
        f"{PG}/migrations/0001_engine.sql",
        "    if cardinality(places) <> 1 then\n",
        "    if cardinality(places) < 1 then\n",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the claim of one waits for who has hold of it",
        f"{PG}/migrations/0001_engine.sql",
        " for update skip locked)\n    returning ready.id",
        " for update)\n    returning ready.id",
        "tests/store/test_handfuls.py -k may_be_had",
    ),
    Mutant(
        "a claim does not look at the state",
        f"{PG}/queries/runs.sql",
        "    where r.id = any(taken.ids) and r.state = 'queued'\n",
        "    where r.id = any(taken.ids)\n",
        "tests/store tests/app -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the replica's clock instead of the database's",
        f"{PG}/ticks.py",
        '            now = instant(claimed[0]["now"])\n',
        '            now = __import__("datetime").datetime.now(__import__("datetime").UTC)\n',
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "the caretaker without its guard",
        f"{PG}/queries/replicas.sql",
        "where r.id = judged.id and (judged.free or judged.stale)\n",
        "where r.id = judged.id\n",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "everybody frees what the dead held",
        f"{PG}/replicas.py",
        'return await self._free(connection, [row["id"] for row in gone], losses=1)',
        "return await self._free(connection, list(dead), losses=1)",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "slots are not counted",
        f"{PG}/queries/schedules.sql",
        "coalesce(held, 0) as held",
        "0::bigint as held",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "one slot too many",
        f"{PG}/queries/schedules.sql",
        "else greatest(0, c.concurrency_limit - (",
        "else greatest(0, c.concurrency_limit + 1 - (",
        "tests/store -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a retry is not planned",
        f"{PG}/queries/runs.sql",
        "insert into rota.delayed (run_at, id) select run_at, id from done where state = 'queued'",
        "insert into rota.delayed (run_at, id) select run_at, id from done where false",
        "tests/store tests/app -k 'postgres and not postgres15'",
    ),
    Mutant(
        "completion outside of the handler's transaction",
        f"{PG}/runs.py",
        "finished = await self._finish([outcome], [], connection)",
        "finished = await self._finish([outcome], [])",
        "tests/store tests/app/test_transactions.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a second try of enqueue makes new ids",
        f"{PG}/enqueue.py",
        "            return await self._make(connection, ids, runs, known)",
        "            return await self._make(connection, await _new_ids(connection, len(runs)), runs, known)",
        "tests/store/test_postgres_only.py",
    ),
    Mutant(
        "ids are kept for ever",
        f"{PG}/enqueue.py",
        "        if not self._ids or now > self._fetched + _IDS_KEPT:\n",
        "        if not self._ids:\n",
        "tests/store/test_postgres_only.py -k ago",
    ),
    Mutant(
        "what was believed before ids were fetched is believed behind it",
        f"{PG}/enqueue.py",
        "            now = steady()  # that may have taken long, and what is believed lasts for a second\n",
        "",
        "tests/store/test_postgres_only.py -k limit",
    ),
    Mutant(
        "the next time is cut to whole seconds",
        f"{PG}/ticks.py",
        "d.next_run_at.timestamp() if d.next_run_at",
        "int(d.next_run_at.timestamp()) if d.next_run_at",
        "tests/store/test_ticks.py -k as_it_was_decided",
    ),
    Mutant(
        "old ids are used up first",
        f"{PG}/enqueue.py",
        "                self._ids.clear()\n",
        "                pass\n",
        "tests/store/test_postgres_only.py -k ago",
    ),
    Mutant(
        "a claim whose reply was lost is forgotten",
        "src/rota/claimer.py",
        "                if not await self.still(replica_id) or self.ending:\n",
        "                if True:\n",
        "tests/unit/test_worker.py -k asked_about",
    ),
    Mutant(
        "nobody asks about an unanswered claim",
        "src/rota/claimer.py",
        "            claims = await self._standing.reclaim(replica_id, token)\n            claimed",
        "            claims = []\n            claimed",
        "tests/cluster/test_commit_cut.py -k 'goes_on'",
    ),
    Mutant(
        "a tick starts before what is ready and should go first",
        f"{PG}/migrations/0001_engine.sql",
        "(select first.rank from first where first.lane = f.lane)",
        "null::bigint",
        "tests/store/test_starts.py",
    ),
    Mutant(
        "a tick that starts leaves no claim behind",
        f"{PG}/migrations/0001_engine.sql",
        "select token, replica, array_agg(id) from known where fresh and begun having count(*) > 0",
        "select token, replica, array_agg(id) from known where fresh and begun having count(*) > 1000000",
        "tests/store/test_starts.py",
    ),
    Mutant(
        "places are kept for an answer that came too late",
        "src/rota/offer.py",
        "            return not self._closed",
        "            return True",
        "tests/unit/test_offer.py",
    ),
    Mutant(
        "whether a tick has started is not asked when the reply is lost",
        "src/rota/worker.py",
        "        elif places is not None and (claims or claims is None) and not self._standing.ending:",
        "        elif places is not None and claims and not self._standing.ending:",
        "tests/app/test_starts.py",
    ),
    Mutant(
        "what was claimed for another number is started",
        "src/rota/claimer.py",
        "        if claimed.claims and not await self._standing.still(replica_id):\n",
        "        if False:\n",
        "tests/app/test_oddities.py -k given_up",
    ),
    Mutant(
        "a token that was asked for in vain is not voided",
        f"{PG}/claim.py",
        '        if await self.fetch("claim_runs.void", token, replica_id):\n            return []\n',
        "",
        "tests/store/test_postgres_only.py",
    ),
    Mutant(
        "the caretaker tidies at every sweep",
        "src/rota/caretaker.py",
        "_TIDY_EVERY = 30.0",
        "_TIDY_EVERY = 5.0",
        "tests/unit/test_caretaker.py",
    ),
    Mutant(
        "an awaited tick is made before its time",
        f"{PG}/migrations/0001_engine.sql",
        "if now < instant or now > until then",
        "if now > until then",
        "tests/store/test_awaited.py -k 'too_soon and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick is made as it was decided however late it is",
        f"{PG}/migrations/0001_engine.sql",
        "if now < instant or now > until then",
        "if now < instant then",
        "tests/store/test_awaited.py -k 'frozen and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick is made whose time was changed",
        f"{PG}/migrations/0001_engine.sql",
        " and c.next_run_at = instant and c.invalid",
        " and c.invalid",
        "tests/store/test_awaited.py -k 'changed and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick is made of a schedule that became invalid",
        f"{PG}/migrations/0001_engine.sql",
        " and c.next_run_at = instant and c.invalid_reason is null",
        " and c.next_run_at = instant",
        "tests/store/test_awaited.py -k 'changed and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick takes a slot that was given away",
        f"{PG}/migrations/0001_engine.sql",
        "c.concurrency_limit > (\n",
        "c.concurrency_limit > 0 * (\n",
        "tests/store/test_awaited.py -k 'slot and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick overtakes what waits for a slot",
        f"{PG}/migrations/0001_engine.sql",
        ") + (select count(*) from rota.waiting w where",
        ") + 0 * (select count(*) from rota.waiting w where",
        "tests/store/test_awaited.py -k 'overtaken and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick does not see what stands in its way",
        f"{PG}/migrations/0001_engine.sql",
        " and (j.concurrency_limit > 0 or j.breaker <> 'closed'))\n            and (c",
        " and false)\n            and (c",
        "tests/store/test_awaited.py -k 'in_its_way and postgres and not postgres15'",
    ),
    Mutant(
        "an awaited tick is made although an operator holds it",
        f"{PG}/migrations/0001_engine.sql",
        "            where l.locked);",
        "            where true);",
        "tests/store/test_awaited.py -k 'operator_holds and postgres and not postgres15'",
    ),
    Mutant(
        "to look at what is coming waits for whoever holds a job",
        f"{PG}/ticks.py",
        "                taken = await _taken(connection, rows)\n",
        "                await _claimed(connection, rows)\n                taken = await _taken(connection, rows)\n",
        "tests/store/test_postgres_only.py -k takes_no_lock",
    ),
    Mutant(
        "a run is made though its schedule did not move",
        f"{PG}/migrations/0001_engine.sql",
        "if advanced <> cardinality(mine) then",
        "if false then",
        "tests/store/test_postgres_only.py -k did_not_move",
    ),
    Mutant(
        "more are decided on ahead than it is told",
        f"{PG}/ticks.py",
        "min(limit, _FEW)",
        "_FEW",
        "tests/store/test_awaited.py -k 'no_more and postgres and not postgres15'",
    ),
    Mutant(
        "a delayed run waits for the tick behind it",
        "src/rota/scheduler.py",
        "if agenda.delayed_in is not None and agenda.delayed_in < agenda.due_in:",
        "if False:",
        "tests/unit/test_scheduler.py",
    ),
    Mutant(
        "isolation is what the database has by default",
        f"{PG}/connection.py",
        '    "default_transaction_isolation": "read committed",\n',
        "",
        "tests/store/test_postgres_pool.py",
    ),
    Mutant(
        "a statement that was prepared is believed for ever",
        f"{PG}/session.py",
        "except (asyncpg.InvalidCachedStatementError, asyncpg.InvalidSQLStatementNameError):",
        "except asyncpg.InvalidSQLStatementNameError:",
        "tests/store/test_postgres_session.py",
    ),
    Mutant(
        "a session that somebody has cleared is believed for ever",
        f"{PG}/session.py",
        "except (asyncpg.InvalidCachedStatementError, asyncpg.InvalidSQLStatementNameError):",
        "except asyncpg.InvalidCachedStatementError:",
        "tests/store/test_postgres_session.py",
    ),
    Mutant(
        "a statement keeps the connection that keeps it",
        f"{PG}/session.py",
        "handle._state.attach()\n",
        "self._said[''] = handle\n        handle._state.attach()\n",
        "tests/store/test_postgres_session.py",
    ),
    Mutant(
        "a type that was read once is believed for ever",
        f"{PG}/session.py",
        "            await self.reload_schema_state()\n            self._said.clear()\n",
        "",
        "tests/store/test_postgres_session.py",
    ),
    Mutant(
        "whoever listens to the driver hears nothing",
        f"{PG}/session.py",
        " or driver._query_loggers",
        "",
        "tests/store/test_postgres_session.py",
    ),
    Mutant(
        "a decision that would not last is made ahead",
        f"{PG}/ticks.py",
        "decide(at + _HOLDS, due)",
        "decide(at, due)",
        "tests/store/test_awaited.py -k 'would_not_last and postgres and not postgres15'",
    ),
    Mutant(
        "a run is admitted without a look at who cancels it",
        f"{PG}/queries/schedules.sql",
        "    for update of r  -- somebody may be cancelling it\n",
        "",
        "tests/store/test_postgres_only.py",
    ),
    Mutant(
        "a claim goes on under a number that was given up",
        "src/rota/claimer.py",
        "        return number == replica_id\n",
        "        return True\n",
        "tests/app/test_oddities.py -k given_up",
    ),
    Mutant(
        "finish without the token (SQLite)",
        f"{LITE}/finish.py",
        "held.pop((o.id, o.token), None)",
        "next((held.pop(k) for k in list(held) if k[0] == o.id), None)",
        "tests/store -k sqlite",
    ),
    Mutant(
        "finish without the token when nothing hangs on it (SQLite)",
        f"{LITE}/queries/runs.sql",
        "where r.lock_token is not ?2 or r.state <> 'running'",
        "where (r.lock_token is null and ?2 is not null) or r.state <> 'running'",
        "tests/store/test_plain_outcomes.py -k sqlite",
    ),
    Mutant(
        "no look at the version (SQLite)",
        f"{LITE}/queries/schedules.sql",
        "from decided d where c.id = d.id and c.version = d.version",
        "from decided d where c.id = d.id",
        "tests/store/test_ticks.py -k sqlite",
    ),
    Mutant(
        "whoever was cut off judges all the same",
        "src/rota/store.py",
        "        return now >= self.judges_from\n",
        "        return True\n",
        "tests/store/test_replicas.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a deposed replica closes its claims",
        "src/rota/worker.py",
        '            if attempt.stop_reason != "lost":\n',
        "            if True:\n",
        "tests/cluster/test_freeze.py -k 'after_its_burial'",
    ),
    Mutant(
        "the pause is forgotten",
        "src/rota/policy.py",
        '        books.miss(table, start, last, "paused")\n',
        "",
        "tests/unit/test_policy.py",
    ),
    Mutant(
        "old ticks run all the same",
        "src/rota/policy.py",
        "        if first is None or first >= horizon:\n            return first\n",
        "        return first\n",
        "tests/unit/test_policy.py",
    ),
    Mutant(
        "an open breaker lets everything through",
        "src/rota/policy.py",
        'if schedule.breaker != "closed":',
        'if schedule.breaker == "broken":',
        "tests/unit/test_policy.py",
    ),
    Mutant(
        "a deposed replica does not notice",
        "src/rota/replica.py",
        "        if not pulse.alive:\n",
        "        if False:\n",
        "tests/cluster/test_freeze.py -k postgres",
    ),
    Mutant(
        "the beat shares the handlers' event loop",
        "src/rota/replica.py",
        "    async def step(self) -> float | None:\n        replica, settings",
        "    async def step(self) -> float | None:\n"
        "        if self._replica._handlers:\n"
        "            sign = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._replica._handlers)\n"
        "            await asyncio.wrap_future(sign)\n"
        "        replica, settings",
        "tests/cluster/test_blocked_loop.py",
    ),
    Mutant(
        "a lock taken without a look at who was faster (Postgres)",
        f"{PG}/queries/locks.sql",
        "where l.fence = $2",
        "where l.fence >= 0 or l.fence = $2",
        "tests/store/test_locks.py -k 'many_who_come and postgres and not postgres15'",
    ),
    Mutant(
        "a lock taken from one that came back between two looks (Postgres)",
        f"{PG}/queries/locks.sql",
        "(free and silent)",
        "(free and silent is not null)",
        "tests/store/test_locks.py -k 'came_back and postgres and not postgres15'",
    ),
    Mutant(
        "a lock taken from one that came back between two looks (SQLite)",
        f"{LITE}/locks.py",
        "silent[row.token] == row.beat_at",
        "True",
        "tests/store/test_locks.py -k 'came_back and sqlite'",
    ),
    Mutant(
        "a lock is trusted across a gap",
        "src/rota/trust.py",
        "period = self.period or self._state[0] + 1",
        "period = self._state[0] or 1",
        "tests/unit/test_trust.py",
    ),
    Mutant(
        "a lock that is lost does not cancel its block",
        "src/rota/hold.py",
        "self.task.cancel(",
        "str(",
        "tests/app/test_lock.py -k 'deposed and sqlite' --timeout 30",
    ),
    Mutant(
        "a cut lifeline does not shorten the trust in a lock",
        "src/rota/trust.py",
        "self._state = (period, until, steady())",
        "pass",
        "tests/app/test_lock.py -k 'stays_cut_off and postgres'",
    ),
    Mutant(
        "a cancelled try keeps the lock that it got",
        "src/rota/keeper.py",
        "        except asyncio.CancelledError:\n            self._chore(self._undo(trying, token))\n",
        "        except asyncio.CancelledError:\n",
        "tests/app/test_lock.py -k 'cancelling_a_wait and postgres'",
    ),
    Mutant(
        "a fence of a later term will do (Postgres)",
        f"{PG}/queries/roles.sql",
        "where role = $1 and term = $2 and nonce = $3 for share",
        "where role = $1 and term >= $2 and nonce = $3 for share",
        "tests/store/test_fences.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a fence of a later term will do (SQLite)",
        f"{LITE}/queries/roles.sql",
        "select 1 from roles where role = ?1 and term = ?2 and nonce = ?3",
        "select 1 from roles where role = ?1 and term >= ?2 and nonce = ?3",
        "tests/store/test_fences.py -k sqlite",
    ),
    Mutant(
        "no nonce in the fence (Postgres)",
        f"{PG}/queries/roles.sql",
        "where role = $1 and term = $2 and nonce = $3 for share",
        "where role = $1 and term = $2 and $3::bigint is not null for share",
        "tests/store/test_fences.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "no nonce in the fence (SQLite)",
        f"{LITE}/queries/roles.sql",
        "select 1 from roles where role = ?1 and term = ?2 and nonce = ?3",
        "select 1 from roles where role = ?1 and term = ?2 and ?3 is not null",
        "tests/store/test_fences.py -k sqlite",
    ),
    Mutant(
        "a fence that is not held until the end of the transaction",
        f"{PG}/queries/roles.sql",
        "and nonce = $3 for share",
        "and nonce = $3",
        "tests/store/test_fences.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a fenced transaction that falls silent lasts",
        f"{PG}/queries/roles.sql",
        "set_config('idle_in_transaction_session_timeout', '3s', true)",
        "set_config('idle_in_transaction_session_timeout', '0', true)",
        "tests/store/test_fences.py -k silent",
    ),
    Mutant(
        "a role is won without a look at the term that was seen (Postgres)",
        f"{PG}/queries/roles.sql",
        "(j.term = $3 and j.vacant)",
        "($3::bigint is not null and j.vacant)",
        "tests/store/test_roles.py -k 'postgres and not postgres15'",
    ),
    Mutant(
        "a role is won without a look at the term that was seen (SQLite)",
        f"{LITE}/roles.py",
        "(force or (term == seen and vacant))",
        "(force or vacant)",
        "tests/store/test_roles.py -k sqlite",
    ),
    Mutant(
        "a role is let go before the lose hook",
        "src/rota/leader.py",
        "            await self._bring_to_an_end(term, body, reign)\n",
        "            await self._stopped(term, reign.failed)\n"
        "            await self._bring_to_an_end(term, body, reign)\n",
        "tests/cluster/test_leadership.py -k graceful",
    ),
    Mutant(
        "trust is counted from the reply",
        "src/rota/replica.py",
        "replica.trusted_until = sent + settings.lease",
        "replica.trusted_until = steady() + settings.lease",
        "tests/unit/test_heart.py",
    ),
    Mutant(
        "a leader that is cut off does not step down",
        "src/rota/replica.py",
        'replica.cut_off(f"the connection to the store was lost: {error}")',
        "pass",
        "tests/unit/test_heart.py",
    ),
    Mutant(
        "a leader that is not confirmed goes on",
        "src/rota/election.py",
        "            if not term.trusted:\n",
        "            if False:\n",
        "tests/unit/test_election.py",
    ),
    Mutant(
        "one without its session lock takes a role",
        "src/rota/electors/store.py",
        "        if steady() >= self._trusted():\n",
        "        if False:\n",
        "tests/unit/test_electors.py",
    ),
    Mutant(
        "strict is taken for prompt",
        "src/rota/succession.py",
        'if takeover == "prompt" or seat.released',
        "if takeover or seat.released",
        "tests/unit/test_succession.py",
    ),
    Mutant(
        "everybody hands over at once",
        "src/rota/succession.py",
        "            if me != min(givers, key=lambda giver: (-loads[giver], giver)):\n",
        "            if me not in givers:\n",
        "tests/unit/test_succession.py",
    ),
    Mutant(
        "a role is led again beside code that has not stopped",
        "src/rota/election.py",
        "        if seat.role in self._terms or self._closing:\n",
        "        if self.term(seat.role) is not None or self._closing:\n",
        "tests/unit/test_election.py",
    ),
    Mutant(
        "trust comes back with a late beat",
        "src/rota/election.py",
        "return not (self.lost or self.let_go or self._lapsed)",
        "return not (self.lost or self.let_go or steady() >= self.trusted_until)",
        "tests/unit/test_election.py",
    ),
    Mutant(
        "a plain hook is left behind in its thread",
        "src/rota/leader.py",
        "    if inspect.iscoroutinefunction(hook):\n        await call\n",
        "    if True:\n        await call\n",
        "tests/unit/test_leader.py",
    ),
    Mutant(
        "the dead are waited for",
        "src/rota/succession.py",
        "    gone = {s.replica_id for s in seats if not s.alive}",
        "    gone = set[int | None]()",
        "tests/unit/test_succession.py",
    ),
]

_LOCK, _OBJECT, _ELECTOR = (f"src/rota/electors/{name}.py" for name in ("lease_lock", "lease_object", "kubernetes"))
_ALONE, _BOTH = "tests/electors -k 'not two_clients'", "tests/electors/test_two_clients.py"
_WAIT = "self.changed + (self.record.seconds or self._seconds)"
_LEASES = [
    ("taken over too early", _LOCK, _WAIT, "self.changed + 1", _BOTH),
    (
        "trusted for too long",
        _LOCK,
        "return self.sent + self._deadline",
        "return self.sent + 3 * self._deadline",
        _BOTH,
    ),
    ("our duration instead of the record's", _LOCK, _WAIT, "self.changed + self._seconds", _ALONE),
    ("a change of the record is not a sign of life", _LOCK, "!= self.record:", "!= self.record and 0:", _ALONE),
    ("any process of the pod is ours", _LOCK, " and self.record.acquired == self._acquired", "", _ALONE),
    ("trusted from the reply", _LOCK, "self.sent = sent\n", "self.sent = steady() + 1\n", _ALONE),
    ("a failed renewal counts", _LOCK, "sent = steady()\n", "sent = self.sent = steady()\n", _ALONE),
    (
        "deleted is forgotten",
        _LOCK,
        "self._lease, self.known = None,",
        "self.record, self._lease, self.known = Record(), None,",
        _ALONE,
    ),
    (
        "deleted is lost",
        _LOCK,
        'self._lease = wanted | {"',
        'return False\n                self._lease = wanted | {"',
        _ALONE,
    ),
    ("released but for the name", _OBJECT, 'holderIdentity="", ', "", _ALONE),
    ("a takeover is not counted", _OBJECT, ".transitions + 1", ".transitions", _ALONE),
    ("a renewal acquires", _OBJECT, "seconds, renewTime", "seconds, acquireTime=micro_time(now), renewTime", _ALONE),
    ("other fields are dropped", _OBJECT, '**(lease.get("spec") or {}), ', "", _ALONE),
    ("the store is not asked for a holder", _ELECTOR, "and not row.released", "and row.released", _ALONE),
    ("asked at every look", _ELECTOR, "steady() - lock.asked < self._retry", "False", _ALONE),
    ("the store's news are not heard", _ELECTOR, "self._terms.get(row.role) == term and ", "", _ALONE),
    ("unknown is vacant", _ELECTOR, "if not lock.known or not lock.free", "if not lock.free", _ALONE),
    ("a term that came too late is led", _ELECTOR, "if not self._leads(seat.role):  #", "if False:  #", _ALONE),
    ("a Lease without a term is kept", _ELECTOR, "await self._let_go(seat.role)\n            raise", "raise", _ALONE),
]
MUTANTS += [Mutant(f"Lease: {name}", *rest) for name, *rest in _LEASES]

_KINDS, _ODD = "tests/app/test_callers_transaction.py", "tests/app/test_callers_oddities.py"
_CALLERS = [
    ("the commit tells nobody", f"{PG}/queries/runs.sql", "(select count(*) from told)", "0", f"{_KINDS} -k picked_up"),
    ("what is delayed is ready", f"{PG}/queries/runs.sql", "case when m.run_at > now then 'delayed' when",
     "case when", f"{_KINDS} -k itself_would"),
    ("a second copy of SQLite is let in", f"{LITE}/copies.py", "if not _free(lambda: not _open_here(path)):",
     "if False:", _ODD),
    ("rota opens a file beside a second copy", f"{LITE}/connection.py", "        refuse_other_copy(path)\n", "", _ODD),
    ("a failed call leaves a part of itself", f"{LITE}/caller.py", "        if db.connection.in_transaction:\n",
     "        if False:\n", f"{_KINDS} -k takes_the_others"),
    ("sqlite3's user has nothing left to commit", f"{LITE}/caller.py", "if not left_open:", "if True:", _ODD),
    ("another file will do", f"{LITE}/caller.py", "os.path.samefile(file, path)", "True", _ODD),
]  # fmt: skip
MUTANTS += [Mutant(f"caller: {name}", *rest) for name, *rest in _CALLERS]


_SETTLED = "tests/app/test_settled.py"
_ENDS = [
    ("a cancellation is taken for a failed step", "src/rota/service.py",
     "                end_if_cancelled()\n                self.emit", "                self.emit",
     "tests/unit/test_service.py"),
    ("a cancelled transaction waits for its rollback", f"{PG}/pool.py",
     "    except Exception:\n        await own.rollback()\n        raise\n    except BaseException:\n",
     "    except BaseException:\n        await own.rollback()\n",
     "tests/store/test_postgres_pool.py -k waits_for_nobody"),
    ("those beside a silent connection are kept", f"{PG}/pool.py", "        if silent:  #", "        if False:  #",
     "tests/store/test_postgres_pool.py -k nobody_answers"),
    ("a place that a thread gives back is not looked at", "src/rota/worker.py",
     "            self._look_again()  # a thread", "            pass  # a thread", f"{_SETTLED} -k given_up"),
    ("nobody hears of what a failure made", "src/rota/outbox.py", "                self._followed(follow)\n",
     "                pass\n", f"{_SETTLED} -k 'failure_makes and postgres'"),
    ("every lane's places count", "src/rota/worker.py",
     "return min((lane.room() for lane in self.lanes if lane.jobs), default=0)",
     "return sum(lane.room() for lane in self.lanes)", "tests/unit/test_worker.py -k has_room"),
    ("only new context variables are seen", "src/rota/lane.py", "left = contextvars.copy_context() != clean",
     "left = len(contextvars.copy_context()) != len(clean)", f"{_SETTLED} -k context_variable"),
    ("a cancellation reaches the next run", "src/rota/execution.py", "        while task.cancelling():\n",
     "        while attempt.stop_reason is not None and task.cancelling():\n", f"{_SETTLED} -k whatever"),
    ("a policy may fail a run's settling", "src/rota/execution.py", "    except Exception as worse:  # of",
     "    except MemoryError as worse:  # of", f"{_SETTLED} -k whatever"),
    ("an unread statement keeps the file", f"{LITE}/worker.py",
     "    connection.close(True)\n", "    connection.close()\n",
     f"{_SETTLED} -k unread"),
    ("what is no database is waited for", "src/rota/service.py", "        except StoreUnfit:\n            raise\n", "",
     f"{_SETTLED} -k no_waiting"),
    ("a run of another app's job is stored", "src/rota/app.py",
     "        if call.job.app is not app:\n", "        if False:\n",
     "tests/app/test_bad_input.py -k no_call"),
]  # fmt: skip
MUTANTS += [Mutant(f"the end: {name}", *rest) for name, *rest in _ENDS]


def applied(mutant: Mutant, folder: Path) -> None:
    file = folder / mutant.file
    text = file.read_text()
    if mutant.before not in text:
        sys.exit(f"{mutant.name}: {mutant.file} does not have the lines to change; the variant must follow the code")
    file.write_text(text.replace(mutant.before, mutant.after, 1))


def caught(mutant: Mutant) -> tuple[bool, str]:
    """Whether a test failed on the broken copy, and which."""
    with tempfile.TemporaryDirectory(prefix="rota-mutant-") as name:
        folder = Path(name)
        for part in ("src", "tests", "pyproject.toml", "README.md", "docs"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, folder / part)
        applied(mutant, folder)
        done = subprocess.run(
            f"{sys.executable} -m pytest -x -q -p no:cacheprovider --no-header --tb=line {mutant.tests}",
            shell=True, cwd=folder, env=os.environ | {"PYTHONPATH": f"{folder / 'src'}"}, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
    failed = [
        line.partition(" ")[2].partition(" - ")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    if done.returncode != 1 or not failed:
        return False, done.stdout[-300:]
    # The guard is what made the difference: with it, the same test passes.
    again = [sys.executable, "-m", "pytest", "-q", failed[0]]
    sound = subprocess.run(again, cwd=ROOT, capture_output=True, check=False)
    return sound.returncode == 0, failed[0] if sound.returncode == 0 else f"{failed[0]} fails without the change too"


def main() -> None:
    for mutant in MUTANTS:
        found = (ROOT / mutant.file).read_text().count(mutant.before)
        if found != 1:
            sys.exit(f"{mutant.name!r}: what it takes away is {found} times in {mutant.file}")
    chosen = [m for m in MUTANTS if not sys.argv[1:] or any(word in m.name for word in sys.argv[1:])]
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        started = time.monotonic()
        noticed, by = caught(mutant)
        verdict = "caught  " if noticed else "SURVIVED"
        print(
            f"{number:2}/{len(chosen)} {verdict} {mutant.name} ({time.monotonic() - started:.0f} s): {by}", flush=True
        )
        if not noticed:
            survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
