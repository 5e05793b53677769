"""What `rota doctor` looks at besides the database itself: settings, tables, schedules, replicas, what is installed."""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from rota import Settings, __version__
from rota.contract.findings import Finding, ok, problem, warning
from rota.errors import KubernetesUnavailable, Misconfigured, NoKubernetes
from rota.schema import SCHEMA
from rota.settings import without_password
from rota.store import ReplicaRow, ScheduleRow, Store

_OURS = ("ROTA_TEST_",)
_NAMED = 5


def settings_table(settings: Settings, environ: Mapping[str, str], url: str | None) -> list[dict[str, Any]]:
    """Every setting, and where it comes from."""
    variables = Settings.variables(environ)
    rows = []
    for spec in fields(Settings):
        value = getattr(settings, spec.name)
        given = spec.name == "url" and url is not None
        source = "--url" if given else variables.get(spec.name, "default")
        rows.append(
            {
                "setting": spec.name,
                "value": without_password(value) if isinstance(value, str) else value,
                "from": source,
            }
        )
    return rows


def check_variables(environ: Mapping[str, str]) -> list[Finding]:
    """A variable that is misspelt changes nothing, silently."""
    known = [f"ROTA_{spec.name.upper()}" for spec in fields(Settings)]
    found = []
    for name in sorted(environ):
        if name.startswith("ROTA_") and name not in known and not name.startswith(_OURS):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            advice = f"did you mean {near[0]}?" if near else "remove it; docs/operations.md has the settings there are"
            found.append(warning("settings", f"{name} is no setting of rota's: nobody reads it", advice))
    return found


def check_installed() -> list[Finding]:
    extras = {"uvloop": "fast", "opentelemetry": "telemetry", "lightkube": "kubernetes"}
    there = [module for module in extras if find_spec(module)]
    missing = [f"{module} (pip install 'rota[{extra}]')" for module, extra in extras.items() if module not in there]
    said = f"rota {__version__}, Python {platform.python_version()}; {', '.join(there) or 'no other extras'}"
    return [ok("installed", said + (f"; not: {', '.join(missing)}" if missing else ""))]


async def check_tables(store: Store) -> Finding:
    version, compatible = await store.schema_version()
    if compatible > SCHEMA:
        said = f"they are of version {version} and need code that knows {compatible}; this knows {SCHEMA}"
        return problem("tables", said, "upgrade rota here")
    if version == 0:
        return problem("tables", "there are none yet", "run `rota migrate`, or leave ROTA_MIGRATE on")
    if version < SCHEMA:
        said = f"they are of version {version}, this code was written for {SCHEMA}"
        return problem("tables", said, "run `rota migrate`, or leave ROTA_MIGRATE on")
    return ok(
        "tables", f"version {version}" + (f", made for newer code than this ({SCHEMA})" if version > SCHEMA else "")
    )


async def check_cluster(store: Store, settings: Settings) -> list[Finding]:
    replicas, schedules, now = await store.list_replicas(), await store.list_schedules(), await store.now()
    alive = [row for row in replicas if row.silent <= settings.dead_after]
    late = [
        row
        for row in schedules
        if row.enabled and not row.invalid_reason and row.next_run_at is not None
        and (now - row.next_run_at).total_seconds() > settings.late_after
    ]  # fmt: skip
    return [*_check_replicas(replicas, alive), *_check_schedules(schedules, alive, late)]


def _check_replicas(replicas: list[ReplicaRow], alive: list[ReplicaRow]) -> list[Finding]:
    silent = [f"{row.name} ({row.silent:.0f} s)" for row in replicas if row not in alive]
    found = []
    if silent:
        advice = "the next replica that lives frees what they held; start one if there is none"
        found.append(warning("replicas", f"silent for too long: {_some(silent)}", advice))
    if not alive:
        return [*found, warning("replicas", "none is alive: nothing runs", "start one with `rota run MODULE:APP`")]
    return [*found, ok("replicas", f"alive: {_some([row.name for row in alive])}")]


def _check_schedules(schedules: list[ScheduleRow], alive: list[ReplicaRow], late: list[ScheduleRow]) -> list[Finding]:
    found = [
        problem(
            "schedules", f"{row.job_id}/{row.name} is invalid: {row.invalid_reason}", "correct the row, or delete it"
        )
        for row in schedules
        if row.invalid_reason and row.enabled
    ]
    jobs = {job for row in alive for job in row.jobs}
    unknown = [row for row in schedules if alive and row.enabled and not row.invalid_reason and row.job_id not in jobs]
    if unknown:
        said = f"no living replica knows the job of {_some([f'{row.job_id}/{row.name}' for row in unknown])}"
        found.append(warning("schedules", said, "start a replica that declares it, or disable the schedule"))
    if late and alive:
        said = f"overdue: {_some([f'{row.job_id}/{row.name}' for row in late])}"
        found.append(warning("schedules", said, "somebody may hold it: see the advisory locks, or schedule_holds"))
    return found or [ok("schedules", f"{len(schedules)}, none of them invalid")]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


async def check_kubernetes(settings: Settings) -> list[Finding]:
    """Whether the Leases can be read, with the rights that this process has."""
    if settings.elector != "kubernetes":
        return []
    try:
        from rota.electors.lease_api import LeaseApi, find_config
    except ImportError as error:
        return [problem("kubernetes", f"the elector needs {error.name!r}", "pip install 'rota[kubernetes]'")]
    try:
        config = find_config(os.environ)
        api = LeaseApi(config, settings.kubernetes_namespace or os.environ.get("POD_NAMESPACE") or config.namespace)
        try:
            await api.get(f"{settings.kubernetes_lease_prefix}-doctor", 5.0)
        finally:
            await api.close()
    except NoKubernetes as error:
        return [
            warning("kubernetes", str(error), "the store would decide who leads; or set ROTA_ELECTOR to another one")
        ]
    except (KubernetesUnavailable, Misconfigured) as error:
        return [problem("kubernetes", str(error), "see docs/kubernetes.md for what it may need")]
    return [ok("kubernetes", f"Leases of namespace {api.namespace} can be read at {api.server}")]
