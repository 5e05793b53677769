"""Where the API is, who this process is, in which namespace, and what a Lease is called."""

from __future__ import annotations

import builtins
import os
import re
import shutil
import socket
import string
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.electors import lease_api
from rota.electors.kubernetes import KubernetesElector
from rota.electors.lease_object import lease_name
from rota.errors import Misconfigured, NoKubernetes, NotOpen
from rota.settings import Settings
from tests.electors.apiserver import ApiServer
from tests.electors.records import Records

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ROLES = st.text() | st.text(alphabet=string.ascii_letters + string.digits + "-._", min_size=1, max_size=12)


def elector(environ: dict[str, str], **settings: Any) -> KubernetesElector:
    return KubernetesElector(Records(), lambda: 1, Settings(**settings), environ=environ)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither a pod nor a home with a kubeconfig; the folder where a service account would be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    account = tmp_path / "serviceaccount"
    monkeypatch.setattr(lease_api, "SERVICE_ACCOUNT", account)
    return account


@pytest.fixture
def account(nowhere: Path) -> Path:
    """A pod's service account."""
    nowhere.mkdir()
    (nowhere / "token").write_text("secret")
    (nowhere / "namespace").write_text("mine\n")
    shutil.copy(certifi.where(), nowhere / "ca.crt")
    return nowhere


async def namespace_of(environ: dict[str, str], **settings: Any) -> str:
    made = elector(environ, **settings)
    await made.start()
    await made.stop()
    return made.namespace


async def test_without_any_configuration_there_is_no_kubernetes(nowhere: Path) -> None:
    with pytest.raises(NoKubernetes, match="KUBECONFIG is not set") as caught:
        await elector({}).start()
    assert str(nowhere) in str(caught.value)


async def test_a_kubeconfig_that_is_not_there_is_a_mistake(nowhere: Path) -> None:
    with pytest.raises(Misconfigured, match=r"KUBECONFIG names '/no/such/file'"):
        await elector({"KUBECONFIG": "/no/such/file"}).start()


async def test_a_pod_without_a_token_is_a_mistake(nowhere: Path) -> None:
    with pytest.raises(Misconfigured, match="automountServiceAccountToken"):
        await elector({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).start()


@pytest.mark.parametrize("text", ["{", "{}", "current-context: x", "[]", "current-context: x\ncontexts: []"])
async def test_a_kubeconfig_that_says_nothing_is_a_mistake(nowhere: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(Misconfigured, match="cannot be used"):
        await elector({"KUBECONFIG": str(tmp_path / "config")}).start()


async def test_without_lightkube_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "rota.electors.lease_api":
            raise ImportError("No module named 'lightkube'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Misconfigured, match=r"pip install 'rota\[kubernetes\]'"):
        await elector({}).start()


async def test_before_it_starts_it_cannot_be_used() -> None:
    with pytest.raises(NotOpen):
        await elector({}).look(["main"])


async def test_the_namespace_is_that_of_the_setting_the_pod_the_context_or_the_default(
    nowhere: Path, tmp_path: Path
) -> None:
    async with ApiServer() as server:
        plain = {"KUBECONFIG": str(server.kubeconfig(tmp_path, "a"))}
        context = {"KUBECONFIG": f"/no/such/file:{server.kubeconfig(tmp_path, 'b', 'ctx')}"}
        assert await namespace_of(context | {"POD_NAMESPACE": "pod"}, kubernetes_namespace="set") == "set"
        assert await namespace_of(context | {"POD_NAMESPACE": "pod"}) == "pod"
        assert await namespace_of(context) == "ctx"
        assert await namespace_of(plain) == "default"


async def test_in_a_pod_the_service_account_wins_over_a_kubeconfig(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBECONFIG": "/no/such/file"}
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    assert await namespace_of(pod) == "mine"
    assert await namespace_of(pod | {"POD_NAMESPACE": "pod"}) == "pod"


async def test_the_kubeconfig_at_home_is_the_last_resort(nowhere: Path, tmp_path: Path) -> None:
    async with ApiServer() as server:
        os.renames(server.kubeconfig(tmp_path, "a", "home"), tmp_path / ".kube" / "config")
        assert await namespace_of({}) == "home"


def test_the_identity_is_that_of_the_pod_else_of_the_host_and_never_the_same_twice() -> None:
    assert elector({"POD_NAME": "web-0"}).identity == "web-0"
    one, two = elector({}).identity, elector({}).identity
    assert one != two
    assert one.startswith(f"{socket.gethostname()}_")


# -- names -----------------------------------------------------------------------------------------


@given(_ROLES)
def test_every_role_has_a_valid_name(role: str) -> None:
    name = lease_name("rota", role)
    assert _SUBDOMAIN.fullmatch(name)
    assert len(name) <= 253
    assert all(len(label) <= 253 for label in name.split("."))
    assert name == lease_name("rota", role)


@given(_ROLES, _ROLES)
def test_no_two_roles_have_one_name(one: str, two: str) -> None:
    made = lease_name("rota", one)
    assert (made == lease_name("rota", two)) == (one == two)
    assert lease_name("rota", made.removeprefix("rota-")) == made or "." in made


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("main", "rota-main"),
        ("nightly-reports", "rota-nightly-reports"),
        ("Main", "rota-main.eb814be3ca3b78c0"),
        ("a_b", "rota-a-b.648fa9b31bc7ff7e"),
        ("ü", "rota-role.607474ca475a9724"),
    ],
)
def test_a_name_stays_what_it_was(role: str, name: str) -> None:
    assert lease_name("rota", role) == name


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kubernetes_lease_duration": 10}, "must stop trusting itself before the others may take its Lease"),
        ({"kubernetes_renew_deadline": 2.4}, "must be able to try again"),
        ({"kubernetes_retry_period": 0}, "must hold"),
        ({"kubernetes_retry_period": -1}, "must hold"),
        ({"kubernetes_lease_duration": 15.5}, "whole seconds"),
        ({"kubernetes_lease_prefix": "Rota"}, "use up to 63 of a-z"),
        ({"kubernetes_lease_prefix": ""}, "cannot begin the name of a Lease"),
        ({"kubernetes_lease_prefix": "a" * 64}, "cannot begin the name of a Lease"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint):
        Settings(**given)


def test_the_environment_sets_them_too() -> None:
    settings = Settings.load({"ROTA_KUBERNETES_LEASE_DURATION": "30", "ROTA_KUBERNETES_RENEW_DEADLINE": "20"})
    assert (settings.kubernetes_lease_duration, settings.kubernetes_renew_deadline) == (30.0, 20.0)
