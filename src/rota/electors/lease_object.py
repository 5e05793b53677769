"""A Lease as the API shows it, and the four things that are written into one: pure, without a clock or a server.

What is written is the object that was read, with five fields of its `spec` replaced: labels, annotations and whatever
others keep there stay, and its `resourceVersion` goes back, so that a write succeeds only on what was seen. The fields
mean what they mean to every other client of Leases: the holder, for how long one must not have heard of it, since when
it holds, its last sign of life, and how often the holder changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from rota.contract.row import Row

Lease: TypeAlias = dict[str, Any]

_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]{0,98}[a-z0-9])?")
_FORBIDDEN = re.compile(r"[^a-z0-9]+")


class Record(Row, frozen=True, kw_only=True):
    """Who holds a Lease. Two equal records, seen one after the other, mean: no sign of life in between."""

    holder: str = ""
    seconds: int | None = None
    acquired: str | None = None
    renewed: str | None = None
    transitions: int = 0

    @classmethod
    def of(cls, lease: Mapping[str, Any]) -> Record:
        spec = lease.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            seconds=spec.get("leaseDurationSeconds"),
            acquired=spec.get("acquireTime"),
            renewed=spec.get("renewTime"),
            transitions=spec.get("leaseTransitions") or 0,
        )


def lease_name(prefix: str, role: str) -> str:
    """The name of the role's Lease: a DNS-1123 name, the same everywhere, and of no other role.

    A role that may be part of such a name is one; any other is made so, and a dot and a hash follow, which the first
    kind never has.
    """
    if _PLAIN.fullmatch(role):
        return f"{prefix}-{role}"
    readable = _FORBIDDEN.sub("-", role.lower())[:60].strip("-") or "role"
    return f"{prefix}-{readable}.{hashlib.sha256(role.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def micro_time(now: datetime) -> str:
    """The one form of MicroTime that every version of the API reads: six digits, always, and Z."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new(name: str, namespace: str, holder: str, seconds: int, now: datetime) -> Lease:
    """A Lease that does not exist yet."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": micro_time(now),
            "renewTime": micro_time(now),
            "leaseTransitions": 0,
        },
    }


def taken_over(lease: Lease, holder: str, seconds: int, now: datetime) -> Lease:
    """Somebody else's, or nobody's, becomes the holder's."""
    return _with(
        lease,
        holderIdentity=holder,
        leaseDurationSeconds=seconds,
        acquireTime=micro_time(now),
        renewTime=micro_time(now),
        leaseTransitions=Record.of(lease).transitions + 1,
    )


def renewed(lease: Lease, seconds: int, now: datetime) -> Lease:
    """A sign of life of its holder."""
    return _with(lease, leaseDurationSeconds=seconds, renewTime=micro_time(now))


def released(lease: Lease, now: datetime) -> Lease:
    """Nobody's, at once. One second, because the API does not accept none."""
    return _with(
        lease, holderIdentity="", leaseDurationSeconds=1, acquireTime=micro_time(now), renewTime=micro_time(now)
    )


def _with(lease: Lease, **fields: Any) -> Lease:
    return {**lease, "spec": {**(lease.get("spec") or {}), **fields}}
