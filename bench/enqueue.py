"""Enqueue: one by one, in bulk with keys, from many connections at once."""

from __future__ import annotations

import asyncio

from bench.machine import Bench, Stopwatch, raw_connection
from bench.service import app as service
from rota import Rota
from rota.store import NewRun

INSERT = "insert into raw_runs (job, args) values ('noop', '{\"n\": 1}')"
UNNEST = "insert into raw_runs (job, args) select 'noop', a::json from unnest($1::text[]) a"


async def measure(bench: Bench) -> None:
    for store in ("postgres", "sqlite"):
        await _one_by_one(bench, store)
        await _bulk(bench, store)
    await _at_once(bench)


async def _one_by_one(bench: Bench, store: str) -> None:
    count, url, raw = bench.many(3000, 300), bench.database(store), None
    if store == "postgres":
        async with raw_connection(url) as connection:
            with Stopwatch() as watch:
                for _ in range(count):
                    await connection.execute(INSERT)
        raw = count / watch.seconds
    app = Rota(url)
    async with app.client():
        job = app.add_job(service.jobs["noop"].fn, "noop", service.jobs["noop"].policies)
        await job.enqueue(0)
        with Stopwatch() as watch:
            for n in range(count):
                await job.enqueue(n)
    bench.add("enqueue one by one", count / watch.seconds, "/s", store=store, raw=raw)


async def _bulk(bench: Bench, store: str) -> None:
    batches, size, url, raw = bench.many(100, 10), 1000, bench.database(store), None
    if store == "postgres":
        async with raw_connection(url) as connection:
            arguments = ['{"n": 1}'] * size
            with Stopwatch() as watch:
                for _ in range(batches):
                    await connection.execute(UNNEST, arguments)
        raw = batches * size / watch.seconds
    for keyed in (False, True):
        app = Rota(url)
        async with app.client():
            job = app.add_job(service.jobs["noop"].fn, "noop", service.jobs["noop"].policies)
            ready = [
                [job.using(key=f"{b}-{n}" if keyed else None).call(n) for n in range(size)] for b in range(batches)
            ]
            with Stopwatch() as watch:
                for calls in ready:
                    await job.enqueue_many(calls)
        what = "enqueue_many, 1000 at a time" + (", with keys" if keyed else "")
        bench.add(what, batches * size / watch.seconds, "/s", store=store, raw=raw)


async def _at_once(bench: Bench) -> None:
    """Twenty clients at once: hints must not make their commits wait for one another."""
    count, clients, url = bench.many(500, 50), 20, bench.database("postgres")
    async with raw_connection(url):
        pass

    async def raw_client() -> None:
        async with raw_connection(url) as connection:
            for _ in range(count):
                await connection.execute(INSERT)

    with Stopwatch() as watch:
        await asyncio.gather(*(raw_client() for _ in range(clients)))
    raw = clients * count / watch.seconds
    apps = [Rota(url) for _ in range(clients)]

    async def client(app: Rota) -> None:
        async with app.client():
            for n in range(count):
                await app.store.enqueue([NewRun(job_id="noop", parameters=f'{{"n":{n}}}')])
                assert app._hinter is not None
                app._hinter.hint("ready")

    async with apps[0].client():
        pass
    with Stopwatch() as watch:
        await asyncio.gather(*(client(app) for app in apps))
    bench.add("enqueue from 20 connections at once", clients * count / watch.seconds, "/s", raw=raw)
