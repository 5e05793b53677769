"""The test server refuses what a real API server refuses: one test for each row of what was observed there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.electors.apiserver import ApiServer

LEASES = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"


async def call(
    server: ApiServer, method: str, name: str = "", body: Any = None, token: str = "admin"
) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
    data = b"" if body is None else json.dumps(body).encode()
    path = f"{LEASES}/{name}" if name else LEASES
    head = f"{method} {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in headers if line.startswith("Content-Length"))
    answer = json.loads(await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
    return int(status.split()[1]), answer


def lease(name: str = "a", version: str | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"resourceVersion": version} if version else {})
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def refused(answer: tuple[int, dict[str, Any]], code: int, reason: str) -> str:
    status, body = answer
    assert (status, body["code"], body["reason"]) == (code, code, reason)
    assert (body["kind"], body["status"]) == ("Status", "Failure")
    assert "details" in body
    return str(body["message"])


async def test_what_is_not_there_is_not_found() -> None:
    async with ApiServer() as server:
        refused(await call(server, "GET", "a"), 404, "NotFound")


async def test_a_new_lease_gets_what_the_server_gives() -> None:
    async with ApiServer() as server:
        code, made = await call(server, "POST", body=lease(holderIdentity="x"))
        assert code == 201
        assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
        assert await call(server, "GET", "a") == (200, made)
        assert (await call(server, "GET"))[1]["items"] == [made]
        refused(await call(server, "POST", body=lease()), 409, "AlreadyExists")


async def test_a_replacement_needs_the_version_that_is_there() -> None:
    async with ApiServer() as server:
        _, made = await call(server, "POST", body=lease(holderIdentity="x", leaseTransitions=3))
        old = made["metadata"]["resourceVersion"]
        code, now = await call(server, "PUT", "a", lease(version=old, holderIdentity="y"))
        assert (code, now["spec"]) == (200, {"holderIdentity": "y"})
        assert int(now["metadata"]["resourceVersion"]) > int(old)
        assert now["metadata"]["uid"] == made["metadata"]["uid"]
        assert "the object has been modified" in refused(
            await call(server, "PUT", "a", lease(version=old)), 409, "Conflict"
        )
        assert "metadata.resourceVersion" in refused(await call(server, "PUT", "a", lease()), 422, "Invalid")


async def test_a_replacement_of_nothing_creates_whatever_version_it_names() -> None:
    async with ApiServer() as server:
        assert (await call(server, "PUT", "a", lease("a")))[0] == 201
        assert (await call(server, "PUT", "b", lease("b", version="7")))[0] == 201


async def test_a_replacement_of_what_is_gone_can_be_made_to_fail() -> None:
    async with ApiServer() as server:
        server.checks_uid = True
        _, made = await call(server, "POST", body=lease())
        await call(server, "DELETE", "a")
        refused(await call(server, "PUT", "a", made), 409, "Conflict")
        assert (await call(server, "PUT", "a", lease()))[0] == 201


@pytest.mark.parametrize(
    ("moment", "code"),
    [
        ("2026-11-15T20:00:02Z", 400),
        ("2026-11-15T20:00:02.123Z", 400),
        ("yesterday", 400),
        ("2026-11-15T20:00:02.123456Z", 201),
        ("2026-11-15T20:00:02.123456+00:00", 201),
    ],
)
@pytest.mark.parametrize("field", ["renewTime", "acquireTime"])
async def test_a_micro_time_has_six_digits(field: str, moment: str, code: int) -> None:
    async with ApiServer() as server:
        answer = await call(server, "POST", body=lease(**{field: moment}))
        assert answer[0] == code
        if code == 400:
            refused(answer, 400, "BadRequest")


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 0}, {"leaseDurationSeconds": -1}, {"leaseTransitions": -1}])
async def test_numbers_that_mean_nothing_are_invalid(spec: dict[str, Any]) -> None:
    async with ApiServer() as server:
        refused(await call(server, "POST", body=lease(**spec)), 422, "Invalid")


async def test_who_may_not_is_told_what_is_missing() -> None:
    async with ApiServer() as server:
        server.denied.add(("admin", "get"))
        message = refused(await call(server, "GET", "a"), 403, "Forbidden")
        assert 'User "admin" cannot get resource "leases"' in message
        assert 'in the namespace "shop"' in message
        refused(await call(server, "GET", "a", token="stranger"), 401, "Unauthorized")


async def test_a_lease_is_deleted() -> None:
    async with ApiServer() as server:
        await call(server, "POST", body=lease())
        code, answer = await call(server, "DELETE", "a")
        assert (code, answer["kind"]) == (200, "Status")
        refused(await call(server, "GET", "a"), 404, "NotFound")
        refused(await call(server, "DELETE", "a"), 404, "NotFound")
