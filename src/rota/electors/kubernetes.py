"""Leadership by Kubernetes: one Lease per role decides, the store's row of the role fences.

`lease_lock` has the rules of a Lease, which are those of all other clients; here every Lease that was won becomes a
term in the store. What the Lease decided is forced upon the store, never the other way round.

When the API is denied or unreachable nobody is told a guess: roles look held, winning does not succeed, and a leader
goes on until its deadline. `ElectorTroubled` says why.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from rota.clock import steady
from rota.contract.roles import Candidate, Fence, Roles, Seat
from rota.elector import Elector
from rota.electors.lease_lock import NEVER, LeaseLock
from rota.electors.lease_object import lease_name
from rota.errors import KubernetesUnavailable, LeadershipLost, Misconfigured, NotOpen
from rota.events import ElectorTroubled, Event
from rota.settings import Settings

if TYPE_CHECKING:
    from rota.electors.lease_api import LeaseApi

_TRIES = 3
_SAY_AGAIN = 60.0


class KubernetesElector(Elector):
    name = "kubernetes"
    answer_within = math.inf  # its calls have their own ends

    def __init__(
        self,
        store: Roles,
        replica_id: Callable[[], int],
        settings: Settings,
        *,
        emit: Callable[[Event], None] = lambda event: None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._replica_id, self._settings, self._emit = store, replica_id, settings, emit
        self._environ = os.environ if environ is None else environ
        self._retry = settings.kubernetes_retry_period
        # Two processes of one host must differ. Two of one pod may not: see `lease_lock`.
        self.identity = self._environ.get("POD_NAME") or f"{socket.gethostname()}_{secrets.token_hex(4)}"
        self.trouble: KubernetesUnavailable | None = None
        """Why the API could not be used the last time; None when it could."""
        self._api: LeaseApi | None = None
        self._locks: dict[str, LeaseLock] = {}
        self._fences: dict[str, Fence] = {}
        self._terms: dict[str, tuple[int, bool]] = {}
        self._said: tuple[str, float] = ("", NEVER)

    async def start(self) -> None:
        """`NoKubernetes` where there is no cluster to ask, `Misconfigured` where there is one that never answers."""
        try:
            from rota.electors.lease_api import LeaseApi, find_config
        except ImportError as error:
            raise Misconfigured(
                f"the elector 'kubernetes' needs lightkube ({error}): pip install 'rota[kubernetes]'"
            ) from error
        config = find_config(self._environ)
        named = self._settings.kubernetes_namespace or self._environ.get("POD_NAMESPACE")
        self._api = LeaseApi(config, named or config.namespace.strip())

    async def stop(self) -> None:
        if self._api is not None:
            await self._api.close()

    @property
    def namespace(self) -> str:
        """Where the Leases are. Known once it was started."""
        if self._api is None:
            raise NotOpen
        return self._api.namespace

    # -- looking -----------------------------------------------------------------------------------

    async def look(self, roles: Sequence[str]) -> tuple[list[Seat], list[Candidate]]:
        """Asks for each Lease once per retry period, and when the store has news of its role.

        No candidates: one that lives in the store may be cut off from the API, and is not to be waited for.
        """
        rows, _ = await self._store.look_roles()
        seats = {role: Seat(role=role) for role in roles} | {row.role: row for row in rows if row.role in roles}
        await asyncio.gather(*(self._ask_if_due(seat) for seat in seats.values() if not self._leads(seat.role)))
        return [self._seat(seat) for seat in seats.values()], []

    async def _ask_if_due(self, row: Seat) -> None:
        lock, term = self._lock(row.role), (row.term, row.released)
        if self._terms.get(row.role) == term and steady() - lock.asked < self._retry:
            return
        self._terms[row.role] = term
        if row.elector == self.name and not row.released:
            lock.expect(row.holder or f"replica {row.replica_id}")
        try:
            await lock.ask()
            self._answered()
        except KubernetesUnavailable as error:
            self._troubled(row.role, error)

    def _seat(self, row: Seat) -> Seat:
        lock = self._lock(row.role)
        holder = lock.record.holder or row.holder
        if self._leads(row.role):
            return msgspec.structs.replace(row, alive=True, holder=holder, released=False, ended=None)
        if row.replica_id == self._replica_id():  # that term is over, whatever the store knows of it
            row = msgspec.structs.replace(row, replica_id=None)
        if not lock.known or not lock.free:
            return msgspec.structs.replace(row, alive=True, holder=holder, released=False, ended=None)
        if not lock.record.holder or lock.ours:
            return msgspec.structs.replace(row, alive=False, released=True)
        ended = steady() - lock.changed
        return msgspec.structs.replace(row, alive=False, holder=holder, released=False, ended=ended)

    # -- winning -----------------------------------------------------------------------------------

    async def win(self, seat: Seat) -> Fence | None:
        lock = self._lock(seat.role)
        if self._leads(seat.role):
            return None
        self._fences.pop(seat.role, None)  # a term that ran out must not live again by the next one's Lease
        try:
            won = await lock.claim()
            self._answered()
        except KubernetesUnavailable as error:
            self._troubled(seat.role, error)
            return None
        if not won:
            return None
        try:
            fence = await self._record_term(seat)
        except BaseException:
            await self._let_go(seat.role)
            raise
        if fence is None:
            await self._let_go(seat.role)
            return None
        self._fences[seat.role] = fence
        if not self._leads(seat.role):  # the store took so long that nothing is left of the Lease
            await self.resign(fence)
            return None
        return fence

    async def _record_term(self, seat: Seat) -> Fence | None:
        """The Lease has decided: whatever term the store has by now, ours follows it.

        It may have moved since it was seen, by a leader whose Lease ran out before it came to write.
        """
        seen, nonce = seat.term, secrets.randbits(63)
        for _ in range(_TRIES):
            fence = await self._store.win_role(
                seat.role, self._replica_id(), seen=seen, nonce=nonce, elector=self.name, force=True
            )
            if fence is not None:
                return fence
            rows, _candidates = await self._store.look_roles()
            seen = next((row.term for row in rows if row.role == seat.role), seen)
        return None

    # -- leading -----------------------------------------------------------------------------------

    async def confirm(self, fence: Fence) -> None:
        """Renews once per retry period; in between there is nothing to say."""
        lock = self._lock(fence.role)
        if self._fences.get(fence.role) != fence:
            raise LeadershipLost(f"term {fence.term} of role {fence.role!r} is over: its Lease {lock.name} was let go")
        if self._leads(fence.role) and steady() - lock.asked >= self._retry:
            try:
                kept = await lock.renew()
                self._answered()
            except KubernetesUnavailable as error:
                self._troubled(fence.role, error)
            else:
                if not kept:
                    del self._fences[fence.role]
                    raise LeadershipLost(f"Lease {lock.name} is not ours any more: it names {lock.record.holder!r}")
        if not self._leads(fence.role):
            raise LeadershipLost(
                f"Lease {lock.name} could not be renewed within kubernetes_renew_deadline "
                f"({self._settings.kubernetes_renew_deadline} s)"
            ) from self.trouble

    def trusted_until(self, fence: Fence) -> float:
        return self._lock(fence.role).trusted_until if self._fences.get(fence.role) == fence else NEVER

    async def resign(self, fence: Fence, meant_for: int | None = None) -> None:
        """The Lease first: whoever hears of it from the store finds it free."""
        if self._fences.get(fence.role) == fence:
            del self._fences[fence.role]
            await self._let_go(fence.role)
        await self._store.release_role(fence, meant_for=meant_for)

    async def _let_go(self, role: str) -> None:
        """Best effort: what cannot be released runs out."""
        try:
            await self._lock(role).release()
        except KubernetesUnavailable as error:
            self._troubled(role, error)

    # -- small things ------------------------------------------------------------------------------

    def _lock(self, role: str) -> LeaseLock:
        lock = self._locks.get(role)
        if lock is None:
            if self._api is None:
                raise NotOpen
            name = lease_name(self._settings.kubernetes_lease_prefix, role)
            lock = self._locks[role] = LeaseLock(self._api, name, self.identity, self._settings)
        return lock

    def _leads(self, role: str) -> bool:
        return role in self._fences and steady() < self._lock(role).trusted_until

    def _troubled(self, role: str, error: KubernetesUnavailable) -> None:
        self.trouble = error
        said, at = self._said
        if str(error) != said or steady() - at >= _SAY_AGAIN:
            self._said = (str(error), steady())
            self._emit(ElectorTroubled(self.name, role, error))

    def _answered(self) -> None:
        self.trouble, self._said = None, ("", NEVER)
