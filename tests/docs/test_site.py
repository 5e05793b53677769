"""The site builds, from this folder alone, and what is public is on it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import rota
from rota import job, options, testing

ROOT = Path(__file__).parents[2]
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
PUBLIC = [getattr(rota, name) for name in rota.__all__] + [job.Enqueuer]
OPTIONS = [options.Timing, options.EveryOptions, options.ScheduleOptions, options.ScheduleChanges]

_ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(?:https?:)?//[^>]*>""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it, without a network."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | NOWHERE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav.values() if isinstance(nav, dict) else nav:
        if isinstance(entry, str):
            yield entry
        else:
            yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_of(nav)) == sorted(page.name for page in (ROOT / "docs").rglob("*.md"))


def test_the_site_has_every_page(site: Path) -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_a_page_asks_for_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not (found := _ELSEWHERE.findall(page.read_text())), f"{page.name}: {found[0]}"


def test_snippets_for_one_store_say_for_which(site: Path) -> None:
    text = (site / "jobs.html").read_text()
    assert (
        text.count('<span class="filename">Postgres</span>') == text.count('<span class="filename">SQLite</span>') > 0
    )
    for page in site.glob("*.html"):
        assert "```" not in page.read_text(), f"{page.name} has a fence that is not understood"


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text()
    public = [f"rota.{name}" for name in rota.__all__] + [f"rota.testing.{name}" for name in testing.__all__]
    missing = [name for name in public if f'id="{name}"' not in text]
    assert missing == []


def test_every_public_method_of_what_a_user_holds_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text()
    for thing, names in {
        rota.Rota: "job cron every client wait open_until_exit enqueue_many enqueue_many_sync "
        "schedule schedules run lock semaphore serialize leader_only "
        "recovery on_become_leader on_lose_leadership singleton leads leadership",
        rota.Run: "row state progress result cancel retry finished",
        rota.Job: "using call enqueue enqueue_sync enqueue_many on_failure __call__",
        rota.Schedule: "refresh update pause resume trigger delete upcoming key",
    }.items():
        for name in names.split():
            assert f'id="rota.{thing.__name__}.{name}"' in text, f"{thing.__name__}.{name}"


def members(thing: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(thing).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def test_whatever_is_public_says_what_it_is_for() -> None:
    for thing in PUBLIC:
        assert vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__, thing
        if inspect.isclass(thing):
            for base in thing.__mro__:
                for name, function in members(base) if base.__module__.startswith("rota") else ():
                    assert function.__doc__, f"{thing.__name__}.{name} has no docstring"


@pytest.mark.parametrize("thing", [*OPTIONS, rota.Settings], ids=lambda thing: str(thing.__name__))
def test_every_option_and_setting_says_what_it_is_for(thing: type) -> None:
    lines = inspect.getsource(thing).splitlines()
    fields = [number for number, line in enumerate(lines) if re.match(r"    [a-z_]+: ", line)]
    assert fields
    for number in fields:
        assert lines[number + 1].startswith('    """'), f"{thing.__name__}: {lines[number]} is not described"
