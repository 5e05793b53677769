"""The API server, as far as Leases need it: get, create, replace. Every call has an end, and every failure a name.

lightkube speaks HTTP and knows kubeconfigs, tokens that rotate and client certificates. Its typed Lease would drop the
fields that it does not know, so Leases are plain dictionaries here, as they came.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.generic_resource import GenericNamespacedResource, create_api_info

from rota.electors.lease_object import Lease
from rota.errors import KubernetesDenied, KubernetesUnavailable, Misconfigured, NoKubernetes

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KUBECONFIG = Path("~/.kube/config")
_USER = re.compile(r'User "([^"]*)"')
_GROUP = "coordination.k8s.io"


class _Lease(GenericNamespacedResource):
    # Made by hand: lightkube's registry would hand out the typed class if anybody in this process had imported it.
    _api_info = create_api_info(_GROUP, "v1", "Lease", "leases")


def find_config(environ: Mapping[str, str]) -> SingleConfig:
    """The pod's service account, else the first file of KUBECONFIG that there is, else ~/.kube/config."""
    try:
        in_pod = (SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in environ
        source = KubeConfig.from_service_account(SERVICE_ACCOUNT) if in_pod else _from_files(environ)
        config = source.get()
    except (NoKubernetes, Misconfigured):
        raise
    except Exception as error:
        raise Misconfigured(f"the configuration of the Kubernetes client cannot be used: {error!r}") from error
    if config is None or config.user is None:
        raise Misconfigured("the current context of the kubeconfig names no user; see `kubectl config view`")
    return config


def _from_files(environ: Mapping[str, str]) -> KubeConfig:
    named = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    for path in named or [_KUBECONFIG.expanduser()]:
        if path.is_file():
            return KubeConfig.from_file(path)
    if named:
        raise Misconfigured(f"KUBECONFIG names {environ['KUBECONFIG']!r}, and there is no such file")
    if "KUBERNETES_SERVICE_HOST" in environ:
        raise Misconfigured(
            f"this pod has no token in {SERVICE_ACCOUNT}: set automountServiceAccountToken: true in its spec"
        )
    raise NoKubernetes(
        f"there is no Kubernetes here: no service account in {SERVICE_ACCOUNT}, KUBECONFIG is not set, "
        f"and there is no {_KUBECONFIG}"
    )


class LeaseApi:
    """Leases of one namespace. Whatever fails is `KubernetesDenied` or `KubernetesUnavailable`."""

    def __init__(self, config: SingleConfig, namespace: str) -> None:
        self.namespace, self.server = namespace, config.cluster.server
        try:
            self._client = AsyncClient(config, namespace=namespace)
        except Exception as error:  # certificates that cannot be read, users that lightkube does not know
            raise Misconfigured(f"no Kubernetes client can be made for {self.server}: {error!r}") from error

    async def close(self) -> None:
        await self._client.close()

    async def get(self, name: str, seconds: float) -> Lease | None:
        """None when there is no such Lease."""
        return await self._call("get", name, seconds)

    async def create(self, lease: Lease, seconds: float) -> Lease | None:
        """The Lease as it was made; None when there is one already."""
        return await self._call("create", lease["metadata"]["name"], seconds, lease)

    async def replace(self, lease: Lease, seconds: float) -> Lease | None:
        """The Lease as it is now; None when it was changed since it was read, and so nothing was written."""
        return await self._call("update", lease["metadata"]["name"], seconds, lease)

    async def _call(self, verb: str, name: str, seconds: float, lease: Lease | None = None) -> Lease | None:
        """Whatever goes wrong in a client or on the way becomes a sentence here."""
        try:
            async with asyncio.timeout(seconds):
                return await self._send(verb, name, lease)
        except ApiError as error:
            status = error.status
            if (verb, status.code) == ("get", 404) or (verb != "get" and status.code == 409):
                return None
            if status.code in (401, 403):
                raise self._denied(verb, name, status.code, status.message or "") from error
            raise self._unusable(verb, name, f"it answers {status.code} {status.message}") from error
        except TimeoutError as error:
            raise self._unusable(verb, name, f"no answer within {seconds:.1f} s") from error
        except Exception as error:
            raise self._unusable(verb, name, str(error) or repr(error)) from error

    async def _send(self, verb: str, name: str, lease: Lease | None) -> Lease:
        answer: Any
        if lease is None:
            answer = await self._client.get(_Lease, name)
        elif verb == "create":
            answer = await self._client.create(_Lease(**lease))
        else:
            answer = await self._client.replace(_Lease(**lease))
        return dict(answer)

    def _denied(self, verb: str, name: str, code: int, message: str) -> KubernetesDenied:
        if code == 401:
            return KubernetesDenied(
                f"the Kubernetes API at {self.server} does not know this user (401, {verb} lease {name} in namespace "
                f"{self.namespace}): its token or certificate is wrong or has expired"
            )
        user = _USER.search(message)
        return KubernetesDenied(
            f"user {user[1] if user else '(not named)'!r} may not {verb} lease {name!r} in namespace "
            f"{self.namespace!r} (403 from {self.server}). A Role that is bound to this user needs the rule\n"
            f"  - apiGroups: [{_GROUP}]\n"
            f"    resources: [leases]\n"
            f"    verbs: [get, create, update]\n"
            f"The server says: {message}"
        )

    def _unusable(self, verb: str, name: str, why: str) -> KubernetesUnavailable:
        return KubernetesUnavailable(
            f"the Kubernetes API at {self.server} cannot be used ({verb} lease {name} in namespace "
            f"{self.namespace}): {why}"
        )
