"""Several electors on one API server: the test server, or with ROTA_TEST_KUBECONFIG a real one.

`read`, `write` and `delete` are an operator with another client at the same Leases.
"""

from __future__ import annotations

import os
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from lightkube import AsyncClient, KubeConfig
from lightkube.resources.coordination_v1 import Lease

from rota.electors.kubernetes import KubernetesElector
from rota.events import ElectorTroubled, Event
from rota.settings import Settings
from tests.electors.apiserver import ApiServer
from tests.electors.records import Records

REAL = os.environ.get("ROTA_TEST_KUBECONFIG")
ROLE = "main"


class Cluster:
    def __init__(self, folder: Path, *, real: bool = REAL is not None) -> None:
        self.records = Records()
        self.events: list[Event] = []
        self.prefix = f"rota-test-{secrets.token_hex(4)}"
        self.name = f"{self.prefix}-{ROLE}"
        self._folder, self._real = folder, real
        self._members = 0

    async def __aenter__(self) -> Self:
        self._stack = await AsyncExitStack().__aenter__()
        if not self._real:
            self.server = await self._stack.enter_async_context(ApiServer())
        self._client = AsyncClient(KubeConfig.from_file(self._kubeconfig("admin")))
        self._stack.push_async_callback(self._client.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        async for lease in self._client.list(Lease):
            if lease.metadata and (lease.metadata.name or "").startswith(self.prefix):
                await self._client.delete(Lease, lease.metadata.name or "")
        await self._stack.aclose()

    def _kubeconfig(self, user: str) -> Path:
        return Path(REAL) if REAL and self._real else self.server.kubeconfig(self._folder, user)

    async def member(self, name: str, **settings: Any) -> KubernetesElector:
        """An elector that has started. Its user at the test server has the same name."""
        self._members += 1
        number = self._members
        elector = KubernetesElector(
            self.records,
            lambda: number,
            Settings(**{"kubernetes_lease_prefix": self.prefix} | settings),
            emit=self.events.append,
            environ={"POD_NAME": name, "KUBECONFIG": str(self._kubeconfig(name))},
        )
        await elector.start()
        self._stack.push_async_callback(elector.stop)
        return elector

    def troubles(self) -> list[str]:
        return [str(event.error) for event in self.events if isinstance(event, ElectorTroubled)]

    async def read(self) -> Lease:
        return await self._client.get(Lease, self.name)

    async def spec(self) -> Any:
        return (await self.read()).spec

    async def write(self, lease: Lease) -> Lease:
        return await self._client.replace(lease)

    async def delete(self) -> None:
        await self._client.delete(Lease, self.name)
