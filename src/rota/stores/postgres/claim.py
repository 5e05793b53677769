"""Claim on Postgres: what is ready, and nobody has hold of, becomes this replica's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

from rota.settings import Settings
from rota.store import Claim, Claimed
from rota.stores.postgres import connection as pg
from rota.stores.postgres.base import PostgresBase
from rota.stores.postgres.front import Front

_MOST_MERGED = 16
_MOST_CLAIMED = 1000  # their ids fit into one page
_FIRST = -(2**63)
_MANY = 100
_order = attrgetter("rank", "id")


class PostgresClaim(PostgresBase):
    def __init__(self, settings: Settings, *, tag: str | None = None, pool_size: int = 8) -> None:
        super().__init__(settings, tag=tag, pool_size=pool_size)
        self._fronts: dict[tuple[str, ...], Front[int]] = {}
        self._handfuls: dict[tuple[str, ...], float] = {}
        """How many runs of these jobs shared a row when we last looked."""
        self._crowded: set[tuple[str, ...]] = set()
        """Jobs of which more than one run was ready when we last looked."""

    async def claim_runs(self, replica_id: int, token: int, jobs: Sequence[str], limit: int) -> Claimed:
        limit = min(limit, _MOST_CLAIMED)
        asked = tuple(jobs)
        front = self._fronts.setdefault(asked, Front(_FIRST))
        start = front.start()
        if start == _FIRST and asked not in self._crowded:
            claimed = await self._claim_one(replica_id, token, asked)
            if not claimed.more:
                return claimed
        claimed = await self._claim(replica_id, token, asked, limit, start)
        if not claimed.claims and start != _FIRST:
            start = _FIRST
            claimed = await self._claim(replica_id, token, asked, limit, start)
        front.note(start, claimed.claims[-1].rank if claimed.more and len(claimed.claims) >= _MANY else None)
        if len(claimed.claims) <= 1 and not claimed.more:
            self._crowded.discard(asked)
        if start != _FIRST:
            return msgspec.structs.replace(claimed, more=True)  # before the start there may be some that others let go
        return claimed

    async def _claim_one(self, replica_id: int, token: int, asked: tuple[str, ...]) -> Claimed:
        [(*run, more)] = await self.fetch("claim_runs.one", token, replica_id, _FIRST, asked)
        if more:
            self._crowded.add(asked)
        return Claimed(claims=_claims(token, [run]) if run[0] is not None else [], more=more)

    async def _claim(self, replica_id: int, token: int, asked: tuple[str, ...], limit: int, start: int) -> Claimed:
        jobs: Sequence[str] = asked
        if len(asked) > _MOST_MERGED:
            jobs = [row["job_id"] for row in await self.fetch("claim_runs.fronts", list(asked), _MOST_MERGED)]
        query, names = _claim_query(len(jobs)), [*jobs, *([None] * _MOST_MERGED)]
        # A row more than it should take: what is locked and not taken is in the way of others.
        rows = min(limit, int(limit / self._handfuls.get(asked, 1.0)) + 1)
        arguments = (token, replica_id, limit, start, rows, *names[: _arms(len(jobs))])
        with pg.translated(self.settings.url):
            *claims, last = await pg.retried(lambda: self.pool.fetch(query, *arguments))
        # What is no run has the columns of one.
        found, runs, busy = last["attempt"], last["losses"], last["slot"]
        self._handfuls[asked] = runs / found if found else 1.0
        unseen = found > 0 and _MOST_MERGED == len(jobs) < len(asked)
        return Claimed(claims=_claims(token, claims), more=found == rows or runs >= limit or unseen, busy=busy)

    async def reclaim(self, replica_id: int, token: int) -> list[Claim]:
        if await self.fetch("claim_runs.void", token, replica_id):
            return []
        return _claims(token, await self.fetch("claim_runs.again", token))


def _claims(token: int, rows: Iterable[Any]) -> list[Claim]:
    return sorted([Claim(token, *row) for row in rows], key=_order)


def _arms(jobs: int) -> int:
    """Statements for 1, 2, 4, 8 and 16 jobs are enough; places that are left over are null, and find nothing."""
    return 1 << max(jobs - 1, 0).bit_length()


@cache
def _claim_query(jobs: int) -> str:
    names = [f"${n}" for n in range(6, 6 + _arms(jobs))]
    if jobs <= 1:
        candidates = pg.QUERIES["claim_runs.candidates"]
    else:
        each = [pg.QUERIES["claim_runs.job"].replace("$6", name) for name in names]
        candidates = pg.QUERIES["claim_runs.merged"].replace("/* jobs */", "\n    union all ".join(each))
    claim = pg.QUERIES["claim_runs"].replace("/* names */", ", ".join(f"({name}::text)" for name in names))
    return claim.replace("/* candidates */", candidates)
