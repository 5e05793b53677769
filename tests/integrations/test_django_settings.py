"""Which database rota uses in a Django project, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota import Misconfigured, Rota
from rota.integrations.django.database import in_memory, refuse_shared_file, url_of
from tests.harness import Databases
from tests.patience import PATIENCE

POSTGRES = "django.db.backends.postgresql"
SQLITE = "django.db.backends.sqlite3"


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "USER": "ada", "HOST": "", "PORT": ""}, "postgresql://ada@/shop"),
        (
            {"NAME": "shop", "USER": "ada", "PASSWORD": "p@ss:/?#%", "HOST": "db.example", "PORT": 5433},
            "postgresql://ada:p%40ss%3A%2F%3F%23%25@/shop?host=db.example&port=5433",
        ),
        ({"NAME": "a b/c", "HOST": "/var/run/pg"}, "postgresql:///a%20b%2Fc?host=%2Fvar%2Frun%2Fpg"),
        ({"NAME": "shop", "HOST": "::1"}, "postgresql:///shop?host=%5B%3A%3A1%5D"),
        ({"NAME": "shop", "HOST": "a,b", "PORT": "1,2"}, "postgresql:///shop?host=a%2Cb&port=1%2C2"),
        (
            {"NAME": "shop", "OPTIONS": {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "pool": True}},
            "postgresql:///shop?sslmode=verify-full&sslrootcert=%2Fca.pem",
        ),
    ],
)
def test_a_postgres_database_is_rotas_too(database: dict[str, Any], url: str) -> None:
    assert url_of("default", {"ENGINE": POSTGRES, **database}) == url


async def test_odd_names_lead_to_the_right_place(databases: Databases) -> None:
    server = databases.server()
    name, user, password = 'odd "na/me?#%&', "o'dd:u@ser/", "p@:/?#%&=+ "
    quoted = name.replace('"', '""')
    server.psql(f'create database "{quoted}"')
    server.psql(f"""create role "{user}" superuser login password '{password}'""")
    try:
        folder = str(Path(server.socket).parent)
        database = {"ENGINE": POSTGRES, "NAME": name, "USER": user, "PASSWORD": password, "HOST": folder, "PORT": 5432}
        app = Rota(url_of("default", database))

        @app.job(transactional=True)
        async def where(ctx: Any) -> list[str]:
            return list(await ctx.connection.fetchrow("select current_database()::text, current_user::text"))

        async with app:
            assert await (await where.enqueue()).result(PATIENCE) == [name, user]
    finally:
        server.psql(f'drop database "{quoted}" with (force)')
        server.psql(f'drop role "{user}"')


@pytest.mark.parametrize(
    ("database", "complaint"),
    [
        ({"ENGINE": "django.db.backends.mysql", "NAME": "x"}, "has the engine 'django.db.backends.mysql'"),
        ({}, "has the engine None"),
        ({"ENGINE": POSTGRES}, "has no NAME"),
        ({"ENGINE": POSTGRES, "OPTIONS": {"service": "shop"}}, "has the option 'service'"),
        ({"ENGINE": POSTGRES, "NAME": "x", "OPTIONS": {"assume_role": "owner"}}, "has the option 'assume_role'"),
        ({"ENGINE": SQLITE, "NAME": ":memory:"}, "is in memory"),
        ({"ENGINE": SQLITE, "NAME": "file:memorydb_default?mode=memory&cache=shared"}, "is in memory"),
    ],
)
def test_what_rota_cannot_follow_is_refused_with_the_way_out(database: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misconfigured, match=r"give ROTA = \{") as refused:
        url_of("orders", database)
    assert str(refused.value).startswith(f"DATABASES['orders'] {complaint}")


def test_a_sqlite_database_gets_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert url_of("default", {"ENGINE": SQLITE, "NAME": tmp_path / "shop.db"}) == f"sqlite:///{tmp_path}/shop.db.rota"
    assert url_of("default", {"ENGINE": SQLITE, "NAME": "shop.db"}) == f"sqlite:///{tmp_path}/shop.db.rota"
    assert not in_memory({"ENGINE": SQLITE, "NAME": "shop.db"})


def test_two_copies_of_sqlite_never_get_the_same_file(tmp_path: Path) -> None:
    databases: dict[str, dict[str, Any]] = {
        "default": {"ENGINE": POSTGRES, "NAME": "shop"},
        "tests": {"ENGINE": SQLITE, "NAME": ":memory:"},
        "archive": {"ENGINE": SQLITE, "NAME": tmp_path / "archive.db"},
    }
    (tmp_path / "archive.db").touch()
    (tmp_path / "other.db").symlink_to(tmp_path / "archive.db")
    for name in ("archive.db", "other.db"):
        with pytest.raises(Misconfigured, match=r"DATABASES\['archive'\].*file of its own"):
            refuse_shared_file(f"sqlite:///{tmp_path}/{name}", databases.items())
    refuse_shared_file(f"sqlite:///{tmp_path}/archive.db.rota", databases.items())
    refuse_shared_file("postgresql:///shop", databases.items())
