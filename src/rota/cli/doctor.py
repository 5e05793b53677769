"""`rota doctor`: looks at everything that may be wrong, changes nothing, and says what to do."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import msgspec
import typer

from rota import Settings
from rota.cli.checks import (
    check_cluster,
    check_installed,
    check_kubernetes,
    check_tables,
    check_variables,
    settings_table,
)
from rota.cli.look import AsJson, Url, missing_file, show, show_one
from rota.cli.say import say
from rota.contract.findings import Finding, problem
from rota.errors import Misconfigured, RotaError
from rota.stores import open_store


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Warnings too make it exit with 1.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Look at settings, database, tables, schedules and replicas, and say what to do. Changes nothing.

    Exits with 0 when there is no problem, with 1 when there is one.

    Example: rota doctor --strict
    """
    findings = [*check_installed(), *check_variables(os.environ)]
    table = []
    try:
        settings = Settings.load(url=url)
    except Misconfigured as error:
        findings.append(problem("settings", str(error), "change it, then look again"))
    else:
        table = settings_table(settings, os.environ, url)
        findings += asyncio.run(_examine(settings))
    problems, warnings = (sum(f.level == level for f in findings) for level in ("problem", "warning"))
    if as_json:
        data = [msgspec.structs.asdict(finding) for finding in findings]
        document = {"settings": table, "findings": data, "problems": problems, "warnings": warnings}
        show_one(document, as_json=True)
    else:
        if table:
            show(table, as_json=False, nothing="")
            say()
        show([_line(finding) for finding in findings], as_json=False, nothing="")
        say(f"\n{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    raise typer.Exit(1 if problems or (strict and warnings) else 0)


async def _examine(settings: Settings) -> list[Finding]:
    """The database first; what is in it only where it answers."""
    found = await check_kubernetes(settings)
    try:
        store = open_store(settings)
    except RotaError as error:
        return [*found, problem("settings", str(error), "change ROTA_URL")]
    database = await store.diagnose()
    found += database
    if any(finding.level == "problem" and finding.check != "pooler" for finding in database):
        return found
    if missing_file(store):
        return [*found, problem("tables", "there are none yet", "run `rota migrate`, or leave ROTA_MIGRATE on")]
    try:
        await store.open()
        try:
            tables = await check_tables(store)
            found.append(tables)
            if tables.level != "problem":
                found += await check_cluster(store, settings)
        finally:
            await store.close()
    except RotaError as error:
        found.append(problem("database", str(error), "look at the server's log"))
    return found


def _line(finding: Finding) -> dict[str, str]:
    said = finding.said if finding.advice is None else f"{finding.said}\n-> {finding.advice}"
    return {"level": finding.level, "check": finding.check, "finding": said}


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
