"""Settings: frozen, validated once, every field also readable from the environment as ROTA_<FIELD>."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias, TypedDict

from rota.address import check_address
from rota.errors import Misconfigured

Elector: TypeAlias = Literal["", "advisory", "file", "lease", "kubernetes", "standalone"]
ELECTORS = ("advisory", "file", "lease", "kubernetes", "standalone")
_OLDER_NAMES = {"scheduler_advisory_locks": ("WORKFLOW_SCHEDULER_ADVISORY_LOCKS",)}
RETRY_JITTER = 1.2
"""Other clients of a Lease stretch the retry period by up to this factor."""
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set, in code (`Rota(beat=2)`) or in the environment (`ROTA_BEAT=2`); code wins."""

    url: str = "sqlite:///rota.db"
    """Where the tables are: `sqlite:///file.db` or `postgresql://...`."""
    control_url: str = ""
    """A direct address of the same database, for the connections that keep a session; needed where a pooler lies in
    between. Empty: the url itself."""
    elector: str = ""
    """Who decides that only one leads: `advisory` (Postgres), `file` (SQLite), `lease`, `kubernetes` or `standalone`.
    Empty: the store's own. With `lease` nothing needs a session."""
    replica: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """This process's name, for people; its identity is the number that the store gives it."""
    concurrency: int = 100
    """How many async handlers run at once in this replica."""
    threads: int = 16
    """How many plain functions run at once in this replica."""
    beat: float = 1.0
    """Seconds between two signs of life while the replica holds something; twice that while it holds nothing."""
    lease: float = 3.5
    """Seconds after the sending of the last confirmed beat for which the replica trusts itself."""
    dead_after: float = 5.0
    """Seconds without a beat after which a replica is deposed."""
    probes: str = ""
    """HOST:PORT on which `/livez` and `/readyz` are answered; empty: nowhere."""
    scheduler: str = "shared"
    """`shared`: every replica makes ticks. `leader`: one at a time does, the others stand by."""
    step_down_timeout: float = 10.0
    """Seconds that a leader's code gets to stop when its term is given up, before it is reported as stuck."""
    exit_on_lost_leadership: bool = False
    """End the process when a leadership is lost (and not when it is given up)."""
    scheduler_advisory_locks: bool = True
    """Take the advisory lock of a schedule while its ticks are made, so that an operator can hold it."""
    migrate: bool = True
    """Bring the tables up to date at start; when off, a store that is too old is refused."""
    hints: bool = True
    """Wake-ups between replicas; without them everything still happens, within a beat or two."""
    shutdown_timeout: float = 30.0
    """Seconds that running handlers get to finish when the replica stops."""
    connect_timeout: float = 30.0
    """Seconds to go on trying to reach the database at start."""
    late_after: float = 60.0
    """A newest tick older than this is a missed one, to which `catch_up` applies."""
    keep_days: float = 30.0
    """Finished runs older than this are pruned; 0 keeps everything."""
    max_losses: int = 10
    """A run that took this many replicas down with it is failed instead of tried again."""
    kubernetes_lease_duration: float = 15.0
    """Seconds without a renewal after which the others may take a Lease; whole, as the API has it."""
    kubernetes_renew_deadline: float = 10.0
    """Seconds after the sending of the last confirmed renewal for which a leader trusts itself."""
    kubernetes_retry_period: float = 2.0
    """Seconds between two renewals, and between two looks at somebody else's Lease."""
    kubernetes_lease_prefix: str = "rota"
    """Leases are named PREFIX-ROLE."""
    kubernetes_namespace: str = ""
    """Where the Leases are; empty: that of the pod, else that of the kubeconfig."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("sqlite:///", "postgresql://", "postgres://")):
            raise Misconfigured(
                f"url {without_password(self.url)!r} is neither sqlite:///FILE nor postgresql://HOST/DATABASE"
            )
        if not self.url.startswith("sqlite:"):
            check_address("url", self.url)
        self._check_elector()
        for name in (
            "concurrency",
            "threads",
            "beat",
            "lease",
            "dead_after",
            "connect_timeout",
            "max_losses",
            "step_down_timeout",
        ):
            if getattr(self, name) <= 0:
                raise Misconfigured(f"{name} must be above 0, not {getattr(self, name)!r}")
        for name in ("shutdown_timeout", "late_after", "keep_days"):
            if getattr(self, name) < 0:
                raise Misconfigured(f"{name} must not be below 0, not {getattr(self, name)!r}")
        if not 2 * self.beat < self.lease < self.dead_after:
            raise Misconfigured(
                f"2 x beat ({self.beat}) < lease ({self.lease}) < dead_after ({self.dead_after}) must hold: "
                "a replica must stop trusting itself before the others give it up"
            )
        if self.probes and not re.fullmatch(r"[^\s/]+:\d{1,5}", self.probes):
            raise Misconfigured(f"probes {self.probes!r} is not HOST:PORT, such as 0.0.0.0:8080")
        if self.scheduler not in ("shared", "leader"):
            raise Misconfigured(f"scheduler must be 'shared' or 'leader', not {self.scheduler!r}")
        if not self.replica.strip():
            raise Misconfigured("replica must have a name; leave it out to get host and process id")
        self._check_kubernetes()

    def _check_kubernetes(self) -> None:
        duration, deadline = self.kubernetes_lease_duration, self.kubernetes_renew_deadline
        retry = self.kubernetes_retry_period
        if not 0 < retry * RETRY_JITTER < deadline < duration:
            raise Misconfigured(
                f"{RETRY_JITTER} x kubernetes_retry_period ({retry}) < kubernetes_renew_deadline ({deadline}) < "
                f"kubernetes_lease_duration ({duration}) must hold: "
                "a leader must be able to try again, and must stop trusting itself before the others may take its Lease"
            )
        if duration != int(duration):
            raise Misconfigured(f"kubernetes_lease_duration must be whole seconds, as a Lease has them, not {duration}")
        if not _PREFIX.fullmatch(self.kubernetes_lease_prefix):
            raise Misconfigured(
                f"kubernetes_lease_prefix {self.kubernetes_lease_prefix!r} cannot begin the name of a Lease: "
                "use up to 63 of a-z, 0-9 and '-', with a letter or digit first and last"
            )

    def _check_elector(self) -> None:
        sqlite = self.url.startswith("sqlite:")
        if self.elector and self.elector not in ELECTORS:
            raise Misconfigured(f"elector {self.elector!r} is none of {', '.join(ELECTORS)}")
        if self.elector == ("advisory" if sqlite else "file"):
            kind, own = ("sqlite", "file") if sqlite else ("postgresql", "advisory")
            raise Misconfigured(
                f"elector {self.elector!r} does not work with a {kind} url: leave it out, or say {own!r}"
            )
        if self.control_url and sqlite:
            raise Misconfigured("control_url is for postgresql: a SQLite file has no other address; leave it out")
        if self.control_url and not self.control_url.startswith(("postgresql://", "postgres://")):
            shown = without_password(self.control_url)
            raise Misconfigured(f"control_url {shown!r} is not postgresql://HOST/DATABASE")
        if self.control_url:
            check_address("control_url", self.control_url)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Self:
        """Settings from the environment, overridden by what is given (None means not given)."""
        environ = os.environ if environ is None else environ
        kinds = {spec.name: str(spec.type) for spec in fields(cls)}
        values: dict[str, Any] = {
            name: _parse(variable, environ[variable], kinds[name]) for name, variable in cls.variables(environ).items()
        }
        unknown = set(given) - {spec.name for spec in fields(cls)}
        if unknown:
            raise Misconfigured(
                f"unknown setting {sorted(unknown)[0]!r}; there are: " + ", ".join(f.name for f in fields(cls))
            )
        return cls(**values | {name: value for name, value in given.items() if value is not None})

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """Of the settings that the environment has, the variable that each comes from."""
        names = {spec.name: (f"ROTA_{spec.name.upper()}", *_OLDER_NAMES.get(spec.name, ())) for spec in fields(cls)}
        return {
            name: next(variable for variable in variables if variable in environ)
            for name, variables in names.items()
            if any(variable in environ for variable in variables)
        }


class GivenSettings(TypedDict, total=False):
    """Settings as they are given in code: those of `Settings`; None is as if it were left out."""

    control_url: str | None
    elector: Elector | None
    replica: str | None
    concurrency: int | None
    threads: int | None
    beat: float | None
    lease: float | None
    dead_after: float | None
    probes: str | None
    scheduler: Literal["shared", "leader"] | None
    step_down_timeout: float | None
    exit_on_lost_leadership: bool | None
    scheduler_advisory_locks: bool | None
    migrate: bool | None
    hints: bool | None
    shutdown_timeout: float | None
    connect_timeout: float | None
    late_after: float | None
    keep_days: float | None
    max_losses: int | None
    kubernetes_lease_duration: float | None
    kubernetes_renew_deadline: float | None
    kubernetes_retry_period: float | None
    kubernetes_lease_prefix: str | None
    kubernetes_namespace: str | None


def _parse(name: str, text: str, kind: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool":
        if text.strip().lower() in _TRUE | _FALSE:
            return text.strip().lower() in _TRUE
        raise Misconfigured(f"{name}={text!r} is neither on nor off")
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise Misconfigured(f"{name}={text!r} is not a number") from None


def without_password(url: str) -> str:
    """An address as it may be shown."""
    url = re.sub(r"(?<=[?&])(password|sslpassword)=[^&]*", r"\1=***", url)
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://***@{tail}" if at else url
