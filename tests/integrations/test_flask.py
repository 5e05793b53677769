"""The Flask example on real stores: requests enqueue, jobs run, whatever process opened the app."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.integrations.examples import EXAMPLES, imported
from tests.patience import PATIENCE

FOLDER = EXAMPLES / "flask"


@pytest.fixture
def service(url: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(FOLDER / "web.py", url, monkeypatch)


def _result(client: Any, run: int) -> dict[str, str | None]:
    for _ in range(3000):
        answer: dict[str, str | None] = client.get(f"/runs/{run}").get_json()
        if answer["state"] not in ("queued", "running"):
            break
        time.sleep(0.01)
    return answer


def test_a_request_enqueues_and_the_job_runs_in_the_background(service: ModuleType) -> None:
    client = service.web.test_client()
    with service.rota:
        answer = client.post("/orders/7")
        assert answer.status_code == 202
        assert client.post("/orders/7").get_json() == answer.get_json()
        assert _result(client, answer.get_json()["run"]) == {
            "state": "succeeded",
            "result": '"order 7 is on its way"',
        }
        assert client.get("/runs/99").status_code == 404


def test_a_request_to_a_service_that_nobody_opened_fails_with_the_way_out(service: ModuleType) -> None:
    service.web.testing = True  # errors come out
    with pytest.raises(RuntimeError, match="this Rota is not open"):
        service.web.test_client().post("/orders/7")


SERVED = """
import os, sys, time
{serve}
client = web.test_client()
run = client.post("/orders/7").get_json()["run"]
while (answer := client.get(f"/runs/{{run}}").get_json())["state"] in ("queued", "running"):
    time.sleep(0.05)
print(answer["result"], flush=True)
sys.exit(7)
"""
WSGI = "from wsgi import web"
PRELOADED = """
from web import web
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from gunicorn_conf import post_worker_init
post_worker_init(None)
"""


@pytest.mark.parametrize("serve", [WSGI, PRELOADED], ids=["wsgi", "preloaded"])
def test_it_is_served_by_processes_that_open_it_themselves(url: str, serve: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED.format(serve=serve)], cwd=FOLDER, capture_output=True, text=True, check=False,
        env=os.environ | {"ROTA_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, '"order 7 is on its way"\n', "")
