"""A Flask service that enqueues jobs. wsgi.py and gunicorn_conf.py say how it is served."""

from flask import Flask
from flask.typing import ResponseReturnValue

from rota import NotFound, Rota

rota = Rota()  # the database in ROTA_URL, else the file rota.db
web = Flask(__name__)


@rota.job(retry=3)
def ship(number: int) -> str:
    return f"order {number} is on its way"


@web.post("/orders/<int:number>")
def place_order(number: int) -> ResponseReturnValue:
    run = rota.wait(ship.using(key=f"order-{number}").enqueue(number), timeout=10)
    return {"run": run.id}, 202


@web.get("/runs/<int:run_id>")
def show_run(run_id: int) -> ResponseReturnValue:
    try:
        row = rota.wait(rota.run(run_id).row(), timeout=10)
    except NotFound as error:
        return {"error": str(error)}, 404
    return {"state": row.state, "result": row.result}  # the result is JSON text
