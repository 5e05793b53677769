"""An API server that knows Leases only, and treats them as a real one does: over a socket, with all its refusals.

It keeps a history of every request, and can be made to fail for one user at a time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from rota.clock import steady

GROUP = "coordination.k8s.io"
_PATH = re.compile(rf"/apis/{re.escape(GROUP)}/v1/namespaces/([^/?]+)/leases(?:/([^/?]+))?(?:\?.*)?")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}

Fault = Literal["mute", "deaf to replies", "reset", "busy"]
"""It accepts and never answers; it obeys and never answers; it hangs up; it answers 503."""


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        self.code = code
        self.body = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        }  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One line of the history."""

    at: float
    user: str
    verb: str
    name: str
    code: int
    spec: dict[str, Any] = field(default_factory=dict)


class ApiServer:
    """`async with ApiServer() as server`. Users are known by their name, which is also their token."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[Request] = []
        self.users: set[str] = {"admin"}
        self.denied: set[tuple[str, str]] = set()
        """(user, verb)"""
        self.rules: list[dict[str, Any]] | None = None
        """Those of an RBAC Role that binds everybody but the admin; None allows everything."""
        self.faults: dict[str, Fault] = {}
        self.checks_uid = False
        """Answer 409 to a replacement that names the `uid` of an object that is gone, instead of creating it."""
        self._version = 100
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def kubeconfig(self, folder: Path, user: str, namespace: str | None = None) -> Path:
        """A file for a user that the server knows from now on."""
        self.users.add(user)
        context = {"cluster": "here", "user": user} | ({"namespace": namespace} if namespace else {})
        path = folder / f"{user.replace(':', '-')}.json"  # JSON is YAML
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "here", "cluster": {"server": self.url}}],
                    "users": [{"name": user, "user": {"token": user}}],
                    "contexts": [{"name": "test", "context": context}],
                }
            )
        )
        return path

    # -- HTTP --------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            # Ended by the client, by a fault, or with the server.
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        user = headers.get("authorization", "").removeprefix("Bearer ")
        fault = self.faults.get(user)
        if fault == "mute":
            await asyncio.Event().wait()
        if fault == "reset":
            return False
        code, answer = self._handle(method, path, user, body, busy=fault == "busy")
        if fault == "deaf to replies":
            await asyncio.Event().wait()
        data = json.dumps(answer).encode()
        writer.write(
            f"HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await writer.drain()
        return True

    def _handle(self, method: str, path: str, user: str, body: bytes, *, busy: bool) -> tuple[int, Any]:
        place = _PATH.fullmatch(path)
        verb, name = _VERBS[method], (place[2] if place else None) or ""
        if verb == "get" and not name:
            verb = "list"
        try:
            if busy:
                raise Refusal(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            if user not in self.users:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            if place is None:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            self._authorize(user, verb, place[1], name)
            code, answer = self._obey(verb, place[1], name, body)
        except Refusal as refusal:
            code, answer = refusal.code, refusal.body
        name = name or answer.get("metadata", {}).get("name", "")
        self.history.append(Request(steady(), user, verb, name, code, copy.deepcopy(answer.get("spec", {}))))
        return code, answer

    def _authorize(self, user: str, verb: str, namespace: str, name: str) -> None:
        allowed = self.rules is None or user == "admin" or any(_allows(rule, verb, name) for rule in self.rules)
        if (user, verb) in self.denied or not allowed:
            what = f'leases.{GROUP} "{name}"' if name else f"leases.{GROUP}"
            raise Refusal(
                403, "Forbidden",
                f'{what} is forbidden: User "{user}" cannot {verb} resource "leases" '
                f'in API group "{GROUP}" in the namespace "{namespace}"',
                name=name, group=GROUP, kind="leases",
            )  # fmt: skip

    # -- Leases ------------------------------------------------------------------------------------

    def _obey(self, verb: str, namespace: str, name: str, body: bytes) -> tuple[int, Any]:
        if verb == "list":
            items = [lease for (where, _), lease in self.leases.items() if where == namespace]
            metadata = {"resourceVersion": str(self._version)}
            return 200, {"kind": "LeaseList", "apiVersion": f"{GROUP}/v1", "metadata": metadata, "items": items}
        if verb in ("get", "delete"):
            if (namespace, name) not in self.leases:
                raise Refusal(404, "NotFound", f'leases.{GROUP} "{name}" not found', name=name, kind="leases")
            if verb == "get":
                return 200, self.leases[namespace, name]
            del self.leases[namespace, name]
            return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        lease = _checked(body)
        name = name or lease["metadata"]["name"]
        existing = self.leases.get((namespace, name))
        if existing is None:
            if self.checks_uid and verb == "update" and "uid" in lease["metadata"]:
                raise Refusal(409, "Conflict", "Precondition failed: UID in precondition", name=name, kind="leases")
            return 201, self._keep(namespace, name, lease, {"uid": secrets.token_hex(8), "creationTimestamp": _now()})
        if verb == "create":
            raise Refusal(409, "AlreadyExists", f'leases.{GROUP} "{name}" already exists', name=name, kind="leases")
        version = lease["metadata"].get("resourceVersion")
        if not version:
            raise _invalid(name, "metadata.resourceVersion", "must be specified for an update")
        if version != existing["metadata"]["resourceVersion"]:
            raise Refusal(
                409, "Conflict",
                f'Operation cannot be fulfilled on leases.{GROUP} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
                name=name, kind="leases",
            )  # fmt: skip
        kept = {field: existing["metadata"][field] for field in ("uid", "creationTimestamp")}
        return 200, self._keep(namespace, name, lease, kept)

    def _keep(self, namespace: str, name: str, lease: dict[str, Any], own: dict[str, str]) -> dict[str, Any]:
        self._version += 1
        own = own | {"name": name, "namespace": namespace, "resourceVersion": str(self._version)}
        lease = lease | {"kind": "Lease", "apiVersion": f"{GROUP}/v1", "metadata": lease["metadata"] | own}
        self.leases[namespace, name] = lease
        return lease


def _allows(rule: dict[str, Any], verb: str, name: str) -> bool:
    """A rule with names never allows to create: the name is in the body, where no authorizer looks."""
    if GROUP not in rule["apiGroups"] or "leases" not in rule["resources"] or verb not in rule["verbs"]:
        return False
    return "resourceNames" not in rule or name in rule["resourceNames"]


def _checked(body: bytes) -> dict[str, Any]:
    lease: dict[str, Any] = json.loads(body)
    spec, name = lease.get("spec", {}), lease["metadata"]["name"]
    for moment in ("acquireTime", "renewTime"):
        if spec.get(moment) is not None and not _MICRO_TIME.fullmatch(spec[moment]):
            raise Refusal(
                400, "BadRequest",
                f'Lease in version "v1" cannot be handled as a Lease: parsing time "{spec[moment]}" '
                'as "2006-01-02T15:04:05.000000Z07:00": cannot parse',
            )  # fmt: skip
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        raise _invalid(name, "spec.leaseDurationSeconds", "must be greater than 0")
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        raise _invalid(name, "spec.leaseTransitions", "must be greater than or equal to 0")
    return lease


def _invalid(name: str, path: str, why: str) -> Refusal:
    message = f'Lease.{GROUP} "{name}" is invalid: {path}: Invalid value: {why}'
    causes = [{"reason": "FieldValueInvalid", "message": why, "field": path}]
    return Refusal(422, "Invalid", message, name=name, kind="Lease", causes=causes)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
