"""One Lease, seen by one process: whose it is, whether it may be taken, and the writes that take, keep and release it.

The invariant is that of every client of Leases. A holder trusts itself for the renew deadline after it *sent* the last
renewal that was confirmed. Nobody takes a Lease before its record has stood unchanged for the record's own duration,
which is longer, counted by the taker's steady clock from the moment it *saw* the record change; `renewTime` is for
people. Every write carries the `resourceVersion` of what was read, so of two who try one wins.

A Lease is this process's own if it names this identity *and* the `acquireTime` that this process wrote: two processes
of one pod do not lead by each other's Lease, and one's own write is recognised when the reply was lost.

Every method that asks the API may raise `KubernetesUnavailable`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rota.clock import steady
from rota.electors import lease_object
from rota.electors.lease_object import Lease, Record
from rota.settings import Settings

if TYPE_CHECKING:
    from rota.electors.lease_api import LeaseApi

NEVER = float("-inf")
_TRIES = 3
"""Calls that may hang one after the other before a holder's deadline has passed."""


class LeaseLock:
    def __init__(self, api: LeaseApi, name: str, identity: str, settings: Settings) -> None:
        self.name = name
        self.record = Record()
        """The last record that was seen or written; of nobody when there never was one."""
        self.changed = NEVER
        """When the record was first seen like this."""
        self.asked = NEVER
        """When the API was last asked, or told, something."""
        self.known = False
        """The last question was answered."""
        self.sent = NEVER
        """When the last confirmed claim or renewal was sent; never, when it is not held."""
        self._api, self._identity = api, identity
        self._seconds = int(settings.kubernetes_lease_duration)
        self._deadline = settings.kubernetes_renew_deadline
        self._patience = self._deadline / _TRIES
        self._lease: Lease | None = None
        self._acquired: str | None = None

    @property
    def trusted_until(self) -> float:
        return self.sent + self._deadline

    @property
    def ours(self) -> bool:
        return self.record.holder == self._identity and self.record.acquired == self._acquired

    @property
    def free(self) -> bool:
        """It may be taken: it is nobody's, or our own, or its holder has been silent for too long."""
        if not self.record.holder or self.ours:
            return True
        return steady() >= self.changed + (self.record.seconds or self._seconds)

    def expect(self, holder: str) -> None:
        """Somebody is said to hold it: if it is not there it was deleted, and its holder gets its time all the same."""
        if not self.record.holder:
            self.record, self.changed = Record(holder=holder), steady()

    async def ask(self) -> None:
        self.asked, self.known = steady(), False
        lease = await self._api.get(self.name, self._patience)
        if lease is not None:
            self._saw(lease)
        else:  # deleted, which says nothing of its holder, who goes on until its deadline: the record is kept
            self._lease, self.known = None, True

    async def claim(self) -> bool:
        """Take it if it is free; false when it is not, or somebody else was faster."""
        if not self.known:
            await self.ask()
        if not self.free:
            return False
        now, sent, lease = datetime.now(UTC), steady(), self._lease
        self.known = False  # until there is a reply it may or may not have been written
        if lease is not None and self.ours:
            written = await self._api.replace(lease_object.renewed(lease, self._seconds, now), self._patience)
        else:
            self._acquired = lease_object.micro_time(now)
            if lease is None:
                wanted = lease_object.new(self.name, self._api.namespace, self._identity, self._seconds, now)
                written = await self._api.create(wanted, self._patience)
            else:
                wanted = lease_object.taken_over(lease, self._identity, self._seconds, now)
                written = await self._api.replace(wanted, self._patience)
        if written is None:
            await self.ask()
            return False
        self._wrote(written, sent)
        return True

    async def renew(self) -> bool:
        """Keep it; false when it is somebody else's.

        A conflict need not be with another holder: a reply may have been lost, or somebody added a label.
        """
        for _ in range(_TRIES):
            if self._lease is None or self._left() <= 0:
                break
            self.asked = sent = steady()
            self.known = False
            wanted = lease_object.renewed(self._lease, self._seconds, datetime.now(UTC))
            exists = "resourceVersion" in wanted["metadata"]
            written = await (self._api.replace if exists else self._api.create)(wanted, self._left())
            if written is not None:
                self._wrote(written, sent)
                break
            found = await self._api.get(self.name, self._left())
            if found is None:  # deleted under us: nobody else has it before somebody makes it anew, so we do
                self._lease = wanted | {"metadata": {"name": self.name, "namespace": self._api.namespace}}
                continue
            self._saw(found)
            if not self.ours:
                self.drop()
                return False
        return True

    def drop(self) -> None:
        """Stop trusting it, without a word to anybody."""
        self.sent = NEVER

    async def release(self) -> None:
        """Let it go, if it is still ours."""
        self.drop()
        self.known = False
        for _ in range(_TRIES):
            if self._lease is None or not self.ours:
                return
            written = await self._api.replace(lease_object.released(self._lease, datetime.now(UTC)), self._patience)
            if written is not None:
                self._saw(written)
                return
            await self.ask()

    def _left(self) -> float:
        """Seconds for the next call of a holder."""
        return min(self._patience, self.trusted_until - steady())

    def _wrote(self, lease: Lease, sent: float) -> None:
        self._saw(lease)
        self.sent = sent

    def _saw(self, lease: Lease) -> None:
        self._lease, self.known = lease, True
        if (record := Record.of(lease)) != self.record:
            self.record, self.changed = record, steady()
