"""Who decides on leadership: the store (`advisory`, `file`, `lease`), a Kubernetes Lease, or nobody (`standalone`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rota.contract.roles import Roles
from rota.elector import Elector
from rota.electors.standalone import StandaloneElector
from rota.electors.store import StoreElector
from rota.errors import Misconfigured, NoKubernetes
from rota.events import ElectorReplaced, Event
from rota.settings import Settings


class Member(Protocol):
    """The replica that would lead."""

    id: int
    trusted_until: float

    @property
    def store(self) -> Roles: ...
    @property
    def leads_until(self) -> float: ...


async def started_elector(settings: Settings, replica: Member, emit: Callable[[Event], None]) -> Elector:
    """The elector that the settings name. Where there is no Kubernetes to ask, the store decides, and that is said."""
    own = "file" if settings.url.startswith("sqlite") else "advisory"
    if settings.elector == "standalone":
        return StandaloneElector(replica.store, replica_id=lambda: replica.id)
    if settings.elector == "kubernetes":
        elector = _kubernetes(settings, replica, emit)
        try:
            await elector.start()
            return elector
        except NoKubernetes as error:
            emit(ElectorReplaced("kubernetes", own, error))
    if settings.elector == "lease":
        return StoreElector(
            "lease", replica.store, replica_id=lambda: replica.id, trusted=lambda: replica.trusted_until
        )  # fmt: skip
    return StoreElector(own, replica.store, replica_id=lambda: replica.id, trusted=lambda: replica.leads_until)


def _kubernetes(settings: Settings, replica: Member, emit: Callable[[Event], None]) -> Elector:
    try:
        from rota.electors.kubernetes import KubernetesElector
    except ImportError as error:
        raise Misconfigured(f"elector 'kubernetes' needs {error.name!r}: pip install 'rota[kubernetes]'") from None
    return KubernetesElector(replica.store, lambda: replica.id, settings, emit=emit)
