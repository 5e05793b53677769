"""A FastAPI service whose every process is a replica: `uvicorn api:api --workers 2`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from rota import Context, NotFound, Rota

rota = Rota()  # the database in ROTA_URL, else the file rota.db


@rota.job(retry=3)
async def ship(number: int) -> str:
    return f"order {number} is on its way"


@rota.cron("0 6 * * *")
async def count_orders(ctx: Context) -> None:
    ctx.log.info("the tick of %s", ctx.tick.due_at)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with rota:  # or rota.client(), when `rota run api:rota` runs the jobs elsewhere
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders/{number}", status_code=202)
async def place_order(number: int) -> dict[str, int]:
    run = await ship.using(key=f"order-{number}").enqueue(number)
    return {"run": run.id}


@api.get("/runs/{run_id}")
async def show_run(run_id: int) -> dict[str, str | None]:
    try:
        row = await rota.run(run_id).row()
    except NotFound as error:
        raise HTTPException(404, str(error)) from None
    return {"state": row.state, "result": row.result}  # the result is JSON text
