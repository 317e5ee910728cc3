# SPDX-License-Identifier: Apache-2.0
"""The admission webhook of the real controller process, called by the real API server.

It is registered by URL on loopback and for the test's namespace alone.
"""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import InvalidError
from tests.support.cluster import RESOURCE, Cluster, Object
from tests.support.tls import make_certificates

DRIVER = "webhook.test.gpudra.io"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
LEASES, LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases", "gpudra-controller"
NAME = "webhook.test.gpudra.io"


def claim(name: str, isolation: str) -> Object:
    """A claim with a configuration for a share."""
    parameters = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "ShareConfig",
        "sharing": {"isolation": isolation},
    }
    devices = {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "share.gpudra.io"}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def template(name: str, isolation: str) -> Object:
    """The same as a template."""
    inner = claim(name, isolation)
    return {**inner, "kind": "ResourceClaimTemplate", "spec": {"spec": inner["spec"]}}


def port_of(log: Path) -> int:
    """Where the webhook listens, as the process has said."""
    (port,) = (
        one["port"]
        for one in map(json.loads, log.read_text().splitlines())
        if one["event"] == "webhook"
    )
    return int(port)


@pytest.fixture
def in_force(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[None]:
    """The webhook, served and registered for the namespace."""
    pairs = make_certificates(tmp_path)
    command = [
        *(sys.executable, "-m", "gpudra.controller"),
        *(f"--kubeconfig={cluster.layout.admin_kubeconfig}", f"--driver-name={DRIVER}"),
        *(f"--namespace={namespace}", "--http-endpoint=127.0.0.1:0", "--instance=webhook"),
        *("--managed=off", "--webhook-endpoint=127.0.0.1:0"),
        *(f"--webhook-cert={pairs.server.certificate}", f"--webhook-key={pairs.server.key}"),
    ]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stderr=out) as process:
        try:
            # It listens before it asks for the lease.
            cluster.wait_for(LEASES.format(namespace), LEASE, is_held, what="to be held")
            url = f"https://127.0.0.1:{port_of(log)}/validate"
            register(cluster, namespace, url, pairs.ca.read_bytes())
            wait_in_force(cluster, namespace)
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from error
        finally:
            cluster.kubectl("delete", "validatingwebhookconfiguration", NAME, "--ignore-not-found")
            process.kill()


def is_held(lease: Object) -> bool:
    """Whether the process leads."""
    return lease["spec"].get("holderIdentity") == "webhook"


def register(cluster: Cluster, namespace: str, url: str, authority: bytes) -> None:
    """As the chart does, but by URL."""
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceclaims", "resourceclaimtemplates"],
    }
    hook: dict[str, Any] = {
        "name": NAME,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [rule],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [hook],
    }
    cluster.client.request("POST", HOOKS, configuration)


def wait_in_force(cluster: Cluster, namespace: str) -> None:
    """The API server takes a moment to see a new configuration; tries without effect tell."""
    deadline = time.monotonic() + 60
    while True:
        try:
            trial = f"{RESOURCE}/namespaces/{namespace}/resourceclaims?dryRun=All"
            cluster.client.request("POST", trial, claim("trial", "nonsense"))
        except InvalidError:
            return
        assert time.monotonic() < deadline


def test_bad_claims_and_templates_do_not_get_into_the_cluster(
    cluster: Cluster, namespace: str, in_force: None
) -> None:
    """Kubectl shows the field that is wrong; good ones pass, and stay editable."""
    field = "devices.config[0].opaque.parameters.sharing.isolation"
    for resource, made, path in (
        ("resourceclaim", claim, f"spec.{field}"),
        ("resourceclaimtemplate", template, f"spec.spec.{field}"),
    ):
        with pytest.raises(AssertionError) as refused:
            cluster.apply(made("bad", "hami"), namespace=namespace)
        assert f'admission webhook "{NAME}" denied the request: {path}: ' in str(refused.value)
        cluster.apply(made("good", "hami-core"), namespace=namespace)
        cluster.kubectl("label", "-n", namespace, resource, "good", "edited=yes")
