"""Runs made on SQLite: written, and put where they wait for their time, for a slot, or for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rota.store import Enqueued, NewRun
from rota.stores.sqlite.session import QUERIES, Session, decode
from rota.stores.sqlite.times import shifted, to_text


def enqueue(db: Session, runs: Sequence[NewRun]) -> list[Enqueued]:
    """Make runs in the transaction that `db` is in."""
    ids, now = db.new_ids(len(runs)), db.now()
    rows = [
        (n, r.job_id, r.key, str(n) if r.correlation_id is None else r.correlation_id, r.parent_id, r.parameters,
         r.priority, to_text(r.run_at) if r.run_at else shifted(now, r.delay) if r.delay else now, now)
        for n, r in zip(ids, runs, strict=True)
    ]  # fmt: skip
    span = (ids[0], ids[-1])
    made = set(ids) if db.insert("enqueue", rows) == len(ids) else set(decode(db.value("enqueue.made", span)))
    placed = 0
    for place in ("enqueue.ready", "enqueue.wait", "enqueue.later"):
        if placed < len(made):
            placed += db.changed(QUERIES[place], (*span, now))
    return [
        Enqueued(id=n, created=True)
        if n in made
        else Enqueued(id=db.value("enqueue.existing", (r.job_id, r.key)), created=False)
        for n, r in zip(ids, runs, strict=True)
    ]
