"""The documented Role is enough for a leader's life, and nothing in it can be left out."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.electors.cluster import ROLE, Cluster
from tests.electors.conftest import Clock
from tests.electors.steps import try_to_win

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def manifests() -> dict[str, Any]:
    """All manifests of the page, by their kind."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {manifest["kind"]: manifest for block in blocks for manifest in yaml.safe_load_all(block)}


async def life(cluster: Cluster, clock: Clock, rules: list[dict[str, Any]]) -> list[str]:
    """Won, renewed, released, won again; what was complained of."""
    async with cluster:
        cluster.server.rules = rules
        a = await cluster.member("a", kubernetes_lease_prefix="rota")
        for _ in range(2):
            if fence := await try_to_win(a):
                clock.skip(2.1)
                await a.confirm(fence)
                await a.resign(fence)
        return cluster.troubles()


def rules_without(verb: str) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = copy.deepcopy(manifests()["Role"]["rules"])
    for rule in rules:
        rule["verbs"] = [other for other in rule["verbs"] if other != verb]
    return rules


async def test_the_role_is_enough(faulty: Cluster, clock: Clock) -> None:
    assert await life(faulty, clock, manifests()["Role"]["rules"]) == []
    assert faulty.records.seats[ROLE].term == 2


@pytest.mark.parametrize("verb", ["get", "create", "update"])
async def test_no_verb_of_the_role_can_be_left_out(faulty: Cluster, clock: Clock, verb: str) -> None:
    troubles = await life(faulty, clock, rules_without(verb))
    assert f"may not {verb} lease" in troubles[0]


def test_the_manifests_fit_together() -> None:
    found = manifests()
    assert found.keys() == {"ServiceAccount", "Role", "RoleBinding", "Deployment"}
    assert [len(rule["verbs"]) for rule in found["Role"]["rules"]] == [1, 2]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    account = found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    names = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
    assert names["ROTA_ELECTOR"]["value"] == "kubernetes"
    assert names["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert names["POD_NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
