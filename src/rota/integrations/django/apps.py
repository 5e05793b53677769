"""What Django does with rota at start: it finds the jobs, and `migrate` makes the tables."""

from __future__ import annotations

import asyncio
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class RotaConfig(AppConfig):
    name = "rota.integrations.django"
    label = "rota"
    verbose_name = "rota"

    def ready(self) -> None:
        autodiscover_modules("jobs")
        post_migrate.connect(_migrate, sender=self)


def _migrate(using: str, verbosity: int = 1, **_: Any) -> None:
    """After `manage.py migrate`, and so in the databases of tests too: rota's own migrations, if there are new ones."""
    from rota.integrations.django.project import app

    if using != app.alias:
        return
    for name in asyncio.run(app.migrate()):
        if verbosity >= 1:
            print(f"  Applied rota.{name}")
