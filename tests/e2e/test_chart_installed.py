# SPDX-License-Identifier: Apache-2.0
"""``make demo`` on a cluster of its own, which installs the chart: agent and controller as pods.

Afterwards the same release is updated and removed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.local.chart import chart_dir
from gpudra.controller.ctl.local.layout import checkout_dir
from tests.support.cluster import CORE, RESOURCE, gpudra_local
from tests.support.helm import NAMESPACE
from tests.support.installation import Installation
from tools.demo.world import NAMESPACE as DEMO
from tools.demo.world import ROOT

SLICES = f"{RESOURCE}/resourceslices"
ONE_GPU = checkout_dir() / "deploy" / "examples" / "one-gpu" / "example.yaml"
GPUS = 8
PREFIX = "upgrade-test"


def test_the_demo_runs_on_the_real_cluster(installed: Installation) -> None:
    """It ends with ``demo: real-cluster``, has shown a Running pod and the two switches, and stays up."""
    lines = installed.told.splitlines()
    assert lines[-1] == "demo: real-cluster"
    assert any(line.startswith("one-gpu") and " Running " in line for line in lines)
    assert any(line.startswith("gpudra-kubelet-plugin-node-1") for line in lines)
    assert "Allocation Timestamp" in installed.told
    constrained = next(line for line in lines if line.startswith("matchAttribute pcieSwitch"))
    first, second = constrained.replace(",", "").split()[-2:]
    assert first == second
    running = installed.cluster.kubectl("get", "pods", "-n", DEMO, "-o", "name").split()
    assert running == ["pod/one-gpu", "pod/same-pcie-switch"]
    installed.cluster.delete_namespace(DEMO)


def test_status_counts_the_pods(installed: Installation) -> None:
    """``gpudra local status`` is healthy, and shows agent and controller among the components."""
    status = gpudra_local("status", "--dir", str(installed.cluster.layout.base))
    assert status.returncode == 0, status.stdout
    shown = {line.split()[0]: line.split()[1] for line in status.stdout.splitlines()[1:]}
    assert (shown["agent-node-1"], shown["controller"]) == ("healthy", "healthy")


def test_a_second_up_replaces_no_pod(installed: Installation) -> None:
    """Ports stay though their pods listen on them; with the same values helm changes nothing."""

    def seen() -> tuple[str, dict[str, Any]]:
        values = yaml.safe_load((installed.cluster.layout.config_dir / "values.yaml").read_text())
        return installed.cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name"), values

    pods, before = seen()
    up = gpudra_local("up", "--dir", str(installed.cluster.layout.base))
    assert up.returncode == 0, up.stderr[-3000:]
    pods_now, now = seen()
    assert now["kubeletPlugin"]["groups"] == before["kubeletPlugin"]["groups"]
    assert now["controller"]["httpPort"] == before["controller"]["httpPort"]
    # Somebody who edits sources while the tests run gets another image, rightly.
    assert now != before or pods_now == pods


def test_the_agent_publishes_and_the_controller_leads(installed: Installation) -> None:
    """As pods, with the rights of the chart and the token of their pod."""
    cluster = installed.cluster
    # One slice a card, and one with the counters that tie the forms of the cards together.
    wanted = GPUS + 1
    cluster.wait_list(SLICES, lambda items: len(items) == wanted, what=f"{wanted} slices")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    pods = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name").split()
    cluster.wait_for(
        leases,
        "gpudra-controller",
        lambda lease: f"pod/{lease['spec'].get('holderIdentity')}" in pods,
        what="to be held by the pod",
    )


def test_an_update_leaves_slices_and_prepared_claims_alone(installed: Installation) -> None:
    """A pod that runs keeps running over a change of the agent, and can be ended afterwards."""
    cluster = installed.cluster
    cluster.apply_file(ONE_GPU)
    cluster.wait_pod("default", "one-gpu")
    before = installed.versions()
    agent = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name")

    webhook = {"enabled": True, "host": installed.node_address(), "port": installed.free_port()}
    installed.upgrade(
        log={"level": "debug"}, adminAccessPolicy={"guardLabel": True}, webhook=webhook
    )

    assert cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name") != agent
    assert installed.versions() == before
    environment = cluster.kubectl("exec", "one-gpu", "--", "env")
    assert environment.count("GPUDRA_DEVICE_") == 1
    cluster.kubectl("delete", "-f", str(ONE_GPU))
    cluster.wait_list(
        f"{RESOURCE}/namespaces/default/resourceclaims",
        lambda items: not items,
        what="the claim to be gone",
    )
    assert list(Path(cluster.state.nodes[0].cdi_dir).iterdir()) == []


def claim(parameters: dict[str, Any]) -> str:
    """A claim that brings parameters for our driver."""
    opaque = {"driver": "gpu.gpudra.io", "parameters": parameters}
    requests = [{"name": "r", "exactly": {"deviceClassName": "share.gpudra.io"}}]
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "configured"},
        "spec": {"devices": {"requests": requests, "config": [{"opaque": opaque}]}},
    }
    return yaml.safe_dump(document)


def test_the_webhook_reads_parameters_when_a_claim_is_made(installed: Installation) -> None:
    """With the certificate that helm made: a mistake is refused by its field, what is right is not."""
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "ShareConfig"}
    right = claim({**head, "sharing": {"isolation": "none"}})
    wrong = claim({**head, "sharing": {"isolation": "magic"}})
    installed.cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=right)

    refusal = installed.refused("create", "--dry-run=server", "-f", "-", stdin=wrong)

    assert 'admission webhook "config.gpu.gpudra.io" denied the request' in refusal
    assert "spec.devices.config[0].opaque.parameters.sharing.isolation" in refusal


def test_an_update_keeps_the_certificate(installed: Installation) -> None:
    """Helm takes it from the cluster: a new one would reach pods and server at different times."""
    path = "{.webhooks[0].clientConfig.caBundle}"
    trusted = installed.cluster.kubectl(
        *("get", "validatingwebhookconfiguration", "gpudra-webhook", "-o", f"jsonpath={path}")
    )
    assert f"caBundle: {trusted}" in installed.release.preview()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"exactly": {"deviceClassName": "monitor.gpudra.io"}}, "needs adminAccess: true in"),
        (
            {"firstAvailable": [{"name": "a", "deviceClassName": "monitor.gpudra.io"}]},
            "which alternatives in firstAvailable cannot have",
        ),
    ],
)
def test_monitors_need_admin_access(
    installed: Installation, request_: dict[str, Any], said: str
) -> None:
    """A claim or template of class monitor without it is refused when it is made."""
    spec = {"devices": {"requests": [{"name": "r", **request_}]}}
    for kind, body in (("ResourceClaim", spec), ("ResourceClaimTemplate", {"spec": spec})):
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "monitor"},
            "spec": body,
        }
        refusal = installed.refused("create", "-f", "-", stdin=yaml.safe_dump(document))
        assert said in refusal


def test_admin_access_is_granted_by_whoever_may(installed: Installation) -> None:
    """A user who may make namespaces cannot label one for admin access; with the role, he can."""
    cluster = installed.cluster
    cluster.kubectl(
        *("create", "clusterrole", "namespace-maker"),
        "--verb=create,delete",
        "--resource=namespaces",
    )
    for role in ("namespace-maker", "gpudra-grant-admin-access"):
        name = f"{role}-test"
        user = "--user=maker" if role == "namespace-maker" else "--user=granter"
        cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={role}", user)
    cluster.kubectl(
        *("create", "clusterrolebinding", "granter-makes"),
        *("--clusterrole=namespace-maker", "--user=granter"),
    )
    label = {"resource.kubernetes.io/admin-access": "true"}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "watchers", "labels": label},
    }
    text = yaml.safe_dump(namespace)
    refusal = installed.refused("create", "--as=maker", "-f", "-", stdin=text)
    assert "user maker may not give a namespace the label" in refusal
    cluster.kubectl("create", "--as=granter", "-f", "-", stdin=text)
    cluster.kubectl("delete", "namespace", "watchers", "--wait=false")


KINDS = {
    "NodePolicy": {"nodeSelector": {"upgrade-test": "yes"}, "forms": ["whole", "share"]},
    "Queue": {"weight": 2, "quota": {"gpus": 4}, "limit": {"gpus": 6}},
    "PodGroup": {"minCount": 2},
}


def stored(installed: Installation) -> dict[str, Any]:
    """The spec of the test's object of each of our kinds, as the server gives it."""
    found = {}
    for kind in KINDS:
        text = installed.cluster.kubectl(
            "get", f"{kind}.gpudra.io", f"{PREFIX}-first", "-o", "json"
        )
        found[kind] = json.loads(text)["spec"]
    return found


def define(installed: Installation, *files: Path) -> None:
    """Definitions of kinds, as an admin updates them."""
    words = [word for file in files for word in ("-f", str(file))]
    installed.cluster.kubectl("apply", "--server-side", "--force-conflicts", *words)


def write(installed: Installation, name: str) -> None:
    """An object of each kind; the server refuses unknown fields."""
    for kind, spec in KINDS.items():
        document = {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": f"{PREFIX}-{name}"},
            "spec": spec,
        }
        installed.cluster.kubectl(
            "apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(document)
        )


def test_kinds_go_up_and_down(installed: Installation) -> None:
    """Objects of the first definitions stay as they are under today's, and under the first again."""
    crds, fixtures = chart_dir() / "crds", ROOT / "tests" / "fixtures" / "upgrade"
    today = sorted(crds.glob("*.yaml"))
    first = [fixtures / f"{path.stem}-first.yaml" for path in today]
    define(installed, *first)
    write(installed, "first")
    before = stored(installed)
    try:
        define(installed, *today)
        assert stored(installed) == before
        write(installed, "first")
        write(installed, "second")
        define(installed, *first)
        assert stored(installed) == before
        write(installed, "second")
    finally:
        define(installed, *today)
        for kind in KINDS:
            names = (f"{PREFIX}-first", f"{PREFIX}-second")
            installed.cluster.kubectl("delete", f"{kind}.gpudra.io", "--ignore-not-found", *names)


def test_nothing_is_published_after_removal(installed: Installation) -> None:
    """``helm uninstall`` takes all objects, and the kubelet the slices of a driver that is gone."""
    cluster = installed.cluster
    installed.release.uninstall()
    cluster.wait_list(
        f"{CORE}/namespaces/{NAMESPACE}/pods", lambda items: not items, what="the pods to be gone"
    )
    cluster.wait_list(SLICES, lambda items: not items, what="the slices to be gone", timeout=90)
