"""The Rota of a Django project: settled by its settings, at home in its database, tidy with its connections."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, connections

from rota import Job, Rota
from rota.errors import Misconfigured
from rota.integrations.django.database import in_memory, refuse_shared_file, url_of
from rota.portal import Portal
from rota.schema import check_schema
from rota.stores import open_store


class ProjectRota(Rota):
    """Made from `settings.ROTA`: rota's settings in capitals, and `DATABASE`, the alias that gives the url."""

    def __init__(self) -> None:
        given = _given()
        self.alias: str = given.pop("database", "default")
        self._derives = not given.get("url") and not os.environ.get("ROTA_URL")
        if self._derives:
            given["url"] = self._derived()
        super().__init__(**given)
        refuse_shared_file(self.settings.url, settings.DATABASES.items())
        self._first_url = self.settings.url

    def _derived(self) -> str:
        if self.alias not in connections:
            raise Misconfigured(f"ROTA['DATABASE'] is {self.alias!r}, and DATABASES has no such database")
        return url_of(self.alias, connections[self.alias].settings_dict)

    def follow_database(self) -> None:
        """Django's tests move to a database of their own after everything was imported: go where it is now."""
        if self._derives and self.settings.url == self._first_url:
            self.settings = replace(self.settings, url=self._derived())
            self._first_url = self.settings.url

    @contextmanager
    def _entrance(self) -> Iterator[Portal]:
        self.follow_database()
        with super()._entrance() as portal:
            yield portal

    def _handlers(self) -> dict[str, Job[..., Any]]:
        return {name: _tidy(job) for name, job in super()._handlers().items()}

    async def migrate(self) -> list[str]:
        """Bring rota's tables up to date, whatever the setting `migrate` says of replicas."""
        if self._derives and in_memory(connections[self.alias].settings_dict):
            return []  # the tests of a project on SQLite: nothing is opened there
        self.follow_database()
        store = open_store(self.settings)
        await store.open()
        try:
            return await check_schema(store, migrate=True)
        finally:
            await store.close()


def _given() -> dict[str, Any]:
    configured: dict[str, Any] = getattr(settings, "ROTA", {})
    for name in configured:
        if name != name.upper():
            raise Misconfigured(f"ROTA[{name!r}] in the settings: names are in capitals, {name.upper()!r}")
    return {name.lower(): value for name, value in configured.items()}


def _tidy(job: Job[..., Any]) -> Job[..., Any]:
    """A run begins and ends as a request does: connections that are too old, or broken, are closed."""
    handler = copy.copy(job)
    handler.fn = _tidy_async(job.fn) if job.is_async else _tidy_plain(job.fn)
    return handler


def _tidy_plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return fn(*args, **kwargs)
        finally:
            close_old_connections()

    return run


def _tidy_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    # Connections belong to threads; those of async code are on the thread that `sync_to_async` uses.
    close = sync_to_async(close_old_connections)

    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        await close()
        try:
            return await fn(*args, **kwargs)
        finally:
            await close()

    return run


app = ProjectRota()
