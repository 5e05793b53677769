"""The Django example as real processes: manage.py, a replica, and the WSGI application."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from rota import Rota
from rota.store import RunFilter
from tests.app.waiting import until
from tests.harness import Databases, execute
from tests.integrations.examples import EXAMPLES
from tests.patience import PATIENCE

FOLDER = EXAMPLES / "django"


class Project:
    """The example with a database of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.environment = os.environ | {
            "SHOP_FOLDER": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "DJANGO_SETTINGS_MODULE": "project.settings",
        }  # fmt: skip
        if url.startswith("postgresql:"):
            parts = urlsplit(url)
            given = {"PGDATABASE": parts.path.strip("/"), "PGUSER": parts.username, "PGPASSWORD": parts.password}
            given |= {"PGHOST": parse_qs(parts.query).get("host", [parts.hostname or ""])[0]}
            given |= {"PGPORT": str(parts.port or "")}
            self.environment |= {name: value for name, value in given.items() if value}
            self.rota_url = url
        else:
            self.rota_url = f"sqlite:///{folder / 'shop.db'}.rota"

    async def python(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """What a Python process in the project's folder says."""
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, *arguments], cwd=FOLDER, env=self.environment | environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    async def manage(self, *arguments: str, code: int = 0, **environment: str) -> str:
        return await self.python("manage.py", *arguments, code=code, **environment)

    @asynccontextmanager
    async def replica(self, *arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "manage.py", "rota", *arguments, cwd=FOLDER, env=self.environment | environment,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
def project(url: str, tmp_path: Path) -> Project:
    return Project(url, tmp_path)


ORDER = """
import time
import project.wsgi
from django.test import Client
client = Client()
order = client.post("/orders", {"item": "tea"}).json()["order"]
while not (answer := client.get(f"/orders/{order}").json())["shipped"]:
    time.sleep(0.05)
print(answer)
"""


async def test_an_order_placed_in_a_web_process_is_shipped_by_a_replica(project: Project) -> None:
    said = await project.manage("migrate")
    assert "Applied rota.0001_engine" in said
    assert "rota" not in await project.manage("migrate")
    async with project.replica("--name", "first") as process:
        assert "'shipped': True" in await project.python("-c", ORDER)
        app = Rota(project.rota_url)
        async with app.client():
            assert [row.name for row in await app.store.list_replicas()] == ["first"]
            [run] = await app.store.find_runs(RunFilter(job_id="ship"))
            assert await app.run(run.id).result(PATIENCE) == "shipped tea"
            assert run.idempotency_key == "order-1"
            [schedule] = await app.schedules("count_open_orders")
            counted = await schedule.trigger()  # an async job, with Django's async queries
            assert await counted.result(PATIENCE) == 0
            process.send_signal(signal.SIGTERM)
            _, said_by_replica = await process.communicate()
            assert process.returncode == 0, said_by_replica
            assert b"(first) joined" in said_by_replica
            assert b"0 orders are open [replica_id=" in said_by_replica
            assert await app.store.list_replicas() == []


async def test_the_projects_tests_run_in_a_database_of_their_own(project: Project, tmp_path: Path) -> None:
    assert "OK" in await project.manage("test")
    await _rota_is_not_there(project, tmp_path)


async def _rota_is_not_there(project: Project, folder: Path) -> None:
    """Neither beside the project's file nor in the project's database."""
    if project.rota_url.startswith("postgres"):
        assert await execute(project.rota_url, "select 1 from pg_namespace where nspname = 'rota'") == []
    assert [name for name in os.listdir(folder) if name.startswith("shop.db.rota")] == []


FOLLOWS = """
import django
django.setup()
from django.conf import settings
from django.db import connection
from django.test.utils import setup_databases, teardown_databases
from rota.integrations.django import app
from shop.jobs import ship
from shop.models import Order
settings.DATABASES["default"].setdefault("TEST", {})["NAME"] = "%s"
connection.settings_dict["TEST"]["NAME"] = "%s"
made = setup_databases(verbosity=0, interactive=False)
order = Order.objects.create(item="tea")
with app:
    print(app.wait(app.wait(ship.enqueue(order.pk)).result(60)), app.settings.url)
connection.close()
teardown_databases(made, verbosity=0)
"""


async def test_the_app_follows_django_into_its_test_database(project: Project, tmp_path: Path) -> None:
    postgres = project.rota_url.startswith("postgres")
    name = "rota_django_test" if postgres else str(tmp_path / "test.db")
    said = await project.python("-c", FOLLOWS % (name, name))
    assert "shipped tea" in said
    assert name in said
    await _rota_is_not_there(project, tmp_path)


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"ROTA_URL": "mysql://shop"}, "neither sqlite:///FILE nor postgresql://"),
        ({"ROTA_URL": "sqlite:///shop.db", "SHOP_FOLDER": str(FOLDER)}, "rota's url names the file of DATABASES"),
    ],
)
async def test_a_wrong_url_is_refused_in_one_sentence(
    tmp_path: Path, environment: dict[str, str], complaint: str
) -> None:
    said = await Project("sqlite:///unused", tmp_path).manage("check", code=1, **environment)
    assert complaint in said.splitlines()[-1]


async def test_a_database_that_is_not_migrated_is_refused_where_replicas_may_not_migrate(tmp_path: Path) -> None:
    project = Project("sqlite:///unused", tmp_path)
    said = await project.manage("rota", code=1, ROTA_MIGRATE="off")
    assert "\nCommandError: rota: the store's tables are not there" in said
    await project.manage("migrate", ROTA_MIGRATE="off")
    async with project.replica(ROTA_MIGRATE="off") as process:
        app = Rota(project.rota_url)
        async with app.client():
            await until(app.store.list_replicas)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def test_a_connection_that_broke_between_two_runs_is_opened_again(databases: Databases, tmp_path: Path) -> None:
    """As with requests: Django looks at a connection again only where it is told that something new begins."""
    project = Project(databases.new("postgres", tmp_path), tmp_path)
    await project.manage("migrate")
    (tmp_path / "more.py").write_text(
        "from rota.integrations.django import app\n"
        "from shop.models import Order\n"
        "@app.job\n"
        "def plain() -> int:\n    return Order.objects.count()\n"
        "@app.job\n"
        "async def eager() -> int:\n    return await Order.objects.acount()\n"
    )
    code = """
import django
django.setup()
import more
from django.db import connection
from rota.integrations.django import app
broken = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'shop'"
with app:
    for job in (more.plain, more.eager):
        assert app.wait(app.wait(job.enqueue()).result(60)) == 0
        with connection.cursor() as cursor:
            cursor.execute("set application_name = 'mine'")
            cursor.execute(broken)
            assert cursor.fetchone()[0] >= 1
        assert app.wait(app.wait(job.enqueue()).result(60)) == 0
print("fine")
"""
    said = await project.python(
        "-c", code, PYTHONPATH=str(tmp_path), PGAPPNAME="shop", CONN_MAX_AGE="60", ROTA_THREADS="1"
    )
    assert said.endswith("fine\n")


IN_THE_TRANSACTION = """
import django
django.setup()
from django.db import connection, transaction
from shop.jobs import ship
from shop.models import Order
for item in ("tea", "rolled back"):
    try:
        with transaction.atomic():
            order = Order.objects.create(item=item)
            ship.using(connection=connection).enqueue_sync(order.pk)
            if item != "tea":
                raise KeyError(item)
    except KeyError:
        pass
"""


async def test_on_postgres_a_run_is_part_of_djangos_transaction(databases: Databases, tmp_path: Path) -> None:
    project = Project(databases.new("postgres", tmp_path), tmp_path)
    await project.manage("migrate")
    await project.python("-c", IN_THE_TRANSACTION)  # no app is open there
    async with project.replica():
        app = Rota(project.rota_url)
        async with app.client():
            [run] = await app.store.find_runs(RunFilter(job_id="ship"))
            await until(app.run(run.id).finished)
            assert (await app.run(run.id).row()).result == '"shipped tea"'


async def test_on_sqlite_djangos_connection_is_refused(tmp_path: Path) -> None:
    project = Project("sqlite:///unused", tmp_path)
    await project.manage("migrate")
    said = await project.python("-c", IN_THE_TRANSACTION, code=1)
    assert "BadInput" in said
