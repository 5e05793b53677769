"""Settings: from code and environment, validated once, errors with the way out."""

from __future__ import annotations

import pytest

from rota.address import place
from rota.errors import Misconfigured
from rota.settings import Settings


def test_code_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"ROTA_BEAT": "0.5", "ROTA_THREADS": "3", "ROTA_HINTS": "off"}
    settings = Settings.load(environ, threads=4)
    assert (settings.beat, settings.threads, settings.hints, settings.concurrency) == (0.5, 4, False, 100)


@pytest.mark.parametrize("name", ["ROTA_SCHEDULER_ADVISORY_LOCKS", "WORKFLOW_SCHEDULER_ADVISORY_LOCKS"])
def test_the_flag_of_the_advisory_locks_is_read_under_both_names(name: str) -> None:
    assert Settings.load({}).scheduler_advisory_locks is True
    assert Settings.load({name: "false"}).scheduler_advisory_locks is False
    assert Settings.load({name: "on"}).scheduler_advisory_locks is True


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"url": "mysql://secret:pw@host/db"}, "neither sqlite:///FILE nor postgresql://"),
        ({"beat": 0}, "beat must be above 0"),
        ({"beat": 3.0}, "a replica must stop trusting itself before the others give it up"),
        ({"shutdown_timeout": -1}, "must not be below 0"),
        ({"replica": " "}, "must have a name"),
        ({"elector": "dice"}, "'dice' is none of advisory, file, lease, kubernetes, standalone"),
        ({"elector": "advisory"}, "'advisory' does not work with a sqlite url: leave it out, or say 'file'"),
        ({"elector": "file", "url": "postgresql:///a"}, "'file' does not work with a postgresql url"),
        ({"control_url": "postgresql:///a"}, "control_url is for postgresql"),
        ({"control_url": "http://u:pw@h/a", "url": "postgresql:///a"}, r"control_url 'http://\*\*\*@h/a' is not"),
        ({"colour": "red"}, "unknown setting 'colour'; there are: url,"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_in_a_sentence(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint) as caught:
        Settings.load({}, **given)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("name", ["url", "control_url"])
@pytest.mark.parametrize(
    "address",
    [
        "postgresql://user:pw/1@host/db",
        "postgresql://user:1/pw@host/db",
        "postgresql://user:pw#1@host/db",
        "postgresql://user:pw?1@host/db",
        "postgresql://user:1?pw@host/db",
        "postgresql://user:p@pw@host/db",
        "postgresql://user:pw@host:port/db",
        "postgresql://user:pw@host:65536/db",
        "postgresql://user:pw@[::1/db",
        "postgresql://user:pw@host/db?sslmode",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_and_not_shown(name: str, address: str) -> None:
    with pytest.raises(Misconfigured, match=f"^{name} cannot be read .* write @ as %40") as caught:
        Settings.load({}, **{"url": "postgresql:///a", name: address})
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("postgresql://user:p%40w@host:5432/db", ("host:5432", "db")),
        ("postgresql://user@[::1]:5432/db?sslmode=require", ("[::1]:5432", "db")),
        ("postgresql://user:pw@one:5432,two:5433/db?target_session_attrs=primary", ("one:5432,two:5433", "db")),
        ("postgresql://%2Fvar%2Frun/db", ("%2Fvar%2Frun", "db")),
        ("postgres:///?host=/var/run&user=a@b", ("/var/run", "")),
        ("postgresql://", ("", "")),
    ],
)
def test_an_address_leads_somewhere_whoever_goes_there(address: str, found: tuple[str, str]) -> None:
    assert Settings(url=address).url == address
    assert place(address) == found


@pytest.mark.parametrize(("name", "text"), [("ROTA_BEAT", "fast"), ("ROTA_HINTS", "maybe"), ("ROTA_THREADS", "1.5")])
def test_an_environment_variable_that_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=f"{name}='{text}'"):
        Settings.load({name: text})
