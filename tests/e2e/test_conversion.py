# SPDX-License-Identifier: Apache-2.0
"""Requests of other systems on a real API server: by the policy of the chart, and to the end.

The policy is written in CEL and the rest in Python; every request of the table is read by both.
"""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from gpudra.api.errors import ApiError, InputError
from gpudra.api.quantity import Quantity
from gpudra.controller.ctl.local.certs import kubeconfig
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.driver.core.conversion import words
from gpudra.driver.core.conversion.pods import CONVERTED, convert_pod
from gpudra.driver.core.conversion.templates import CARD_SIZES, template_of
from gpudra.driver.core.conversion.types import Ask, Form
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, Resource
from tests.support.cluster import CORE, RESOURCE, Cluster, busybox_pod
from tests.support.conversion import claims, rows
from tests.support.gate import until_settled
from tests.support.guides import examples
from tests.support.helm import CHART, IMAGE, Helm

MODES = ("stock", "managed")
# A release of its own: its lease and rights are nobody else's.
RUN = uuid.uuid4().hex[:6]
RELEASE, SYSTEM = "gpudra-conv", f"conversion-system-{RUN}"
ACCOUNT = f"{RELEASE}-controller"
CLASSES = checkout_dir() / "deploy" / "manifests" / "deviceclasses.yaml"
EVENTS = "/apis/events.k8s.io/v1"
APPLY = ("apply", "--server-side", "--force-conflicts", "-f", "-")


@dataclass(frozen=True)
class OptedIn:
    """The cluster with the policy in force, and a namespace for each mode."""

    cluster: Cluster
    names: dict[str, str]

    def dry_run(self, pod: dict[str, Any], mode: str) -> dict[str, Any]:
        """The pod after admission."""
        path = f"{CORE}/namespaces/{self.names[mode]}/pods?dryRun=All"
        return self.cluster.client.request("POST", path, pod)


def namespace_object(name: str, **labels: str) -> dict[str, Any]:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture(scope="module")
def opted_in(cluster: Cluster) -> Iterator[OptedIn]:
    """Policy, rights and namespaces; ready once a pod in each namespace is converted."""
    objects = rendered("conversion-policy.yaml", "controller.yaml")
    objects = [one for one in objects if one["kind"] not in ("Deployment", "PodDisruptionBudget")]
    made = OptedIn(cluster, {mode: f"conversion-{mode}-{RUN}" for mode in MODES})
    try:
        namespaces = [namespace_object(SYSTEM)]
        namespaces += [
            namespace_object(name, **{"gpudra.io/convert": mode})
            for mode, name in made.names.items()
        ]
        cluster.kubectl(*APPLY, stdin=yaml.safe_dump_all([*namespaces, *objects]))
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CLASSES))
        for mode, name in made.names.items():
            accounts = f"{CORE}/namespaces/{name}/serviceaccounts"
            cluster.wait_for(accounts, "default", lambda _: True, what="to exist")
            in_force(made, mode)
        yield made
    finally:
        cluster.kubectl(
            "delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(objects)
        )
        for name in (*made.names.values(), SYSTEM):
            cluster.delete_namespace(name)


@pytest.fixture(scope="module")
def team(opted_in: OptedIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The namespace in stock mode, with a controller that makes templates, by the chart's rights."""
    cluster = opted_in.cluster
    token = cluster.kubectl("create", "token", ACCOUNT, "-n", SYSTEM).strip()
    folder = tmp_path_factory.mktemp("controller")
    config = folder / "kubeconfig"
    authority = cluster.layout.pki_dir / "ca.crt"
    config.write_text(kubeconfig(cluster.state.server, authority, {"token": token}))
    command = [
        *(sys.executable, "-m", "gpudra.controller", f"--kubeconfig={config}"),
        *(f"--namespace={SYSTEM}", "--http-endpoint=127.0.0.1:0", "--conversion=on"),
    ]
    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen(command, stderr=out) as process:
        try:
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
            cluster.wait_for(leases, "gpudra-controller", held, what="to be held", timeout=120)
            yield opted_in.names["stock"]
        finally:
            process.terminate()
            process.wait(timeout=30)
    bad = [line for line in log.read_text().splitlines() if json.loads(line)["level"] == "error"]
    assert bad == []


def held(lease: dict[str, Any]) -> bool:
    """Whether some process leads."""
    return bool(lease["spec"].get("holderIdentity"))


def in_force(opted_in: OptedIn, mode: str) -> None:
    """Asks the server until the policy answers: it follows its own watch, which nobody can see."""
    probe = busybox_pod("probe", "true")
    probe["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    deadline = time.monotonic() + 60
    while CONVERTED not in opted_in.dry_run(probe, mode)["metadata"].get("labels", {}):
        assert time.monotonic() < deadline, f"the policy does not answer in {mode}"


def essence(pod: dict[str, Any]) -> dict[str, Any]:
    """What conversion is about, of a pod before or after the server's defaults."""
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        "claims": spec.get("resourceClaims") or [],
        "scheduler": spec.get("schedulerName", "default-scheduler"),
        "resources": {
            one["name"]: {
                "limits": {
                    key: Quantity.parse(value)
                    for key, value in (one.get("resources", {}).get("limits") or {}).items()
                },
                "claims": one.get("resources", {}).get("claims") or [],
            }
            for kind in ("containers", "initContainers")
            for one in spec.get(kind) or ()
        },
    }


def by_us(pod: dict[str, Any], *, managed: bool) -> dict[str, Any]:
    """The pod after conversion in Python; as it was if it is refused."""
    try:
        return convert_pod(pod, managed=managed).pod
    except InputError:
        return pod


async def dry_run_all(
    cluster: Cluster, resource: Resource, objects: Iterable[tuple[str, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """What the server makes of objects, each with its namespace; over one connection."""
    options = ClientOptions(timeout=120)
    async with await KubeClient.load(
        str(cluster.layout.admin_kubeconfig), options=options
    ) as client:
        return [
            await client.create(resource, raw, namespace, dry_run=True)
            for namespace, raw in objects
        ]


async def test_the_policy_and_the_command_read_every_request_alike(opted_in: OptedIn) -> None:
    """The same template names, and nothing left or taken that the other would not."""
    table = rows()
    pods = [
        (opted_in.names["managed" if row.managed else "stock"], row.pod(f"row-{index}"))
        for index, row in enumerate(table)
    ]
    found = await dry_run_all(opted_in.cluster, PODS, pods)
    different = []
    for row, (_, pod), admitted in zip(table, pods, found, strict=True):
        if essence(admitted) != essence(by_us(pod, managed=row.managed)):
            different.append(row.row)
        requests = [
            key
            for one in admitted["spec"]["containers"]
            for key in one.get("resources", {}).get("requests") or ()
            if words.FOREIGN.fullmatch(key)
        ]
        if requests and row.asks:
            different.append(f"{row.row}: requests {requests} are left")
    assert different == []


async def test_every_claim_and_every_converted_pod_is_valid(
    opted_in: OptedIn, namespace: str
) -> None:
    """The API server takes all of them in a namespace that is not opted in."""
    templates = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"spec": {"devices": claim["devices"]}},
        }
        for name, claim in claims().items()
    ]
    pods = [
        convert_pod(row.pod(f"row-{index}"), managed=row.managed).pod
        for index, row in enumerate(rows())
        if row.refused is None
    ]
    cluster = opted_in.cluster
    made = await dry_run_all(
        cluster, RESOURCE_CLAIM_TEMPLATES, ((namespace, one) for one in templates)
    )
    assert len(made) == len(claims())
    await dry_run_all(cluster, PODS, ((namespace, one) for one in pods))


def rendered(*templates: str) -> list[dict[str, Any]]:
    """Objects of templates of the chart, by our release."""
    shown = [word for one in templates for word in ("--show-only", f"templates/{one}")]
    done = Helm.built().run(
        *("template", RELEASE, str(CHART), "--namespace", SYSTEM),
        *("--set", "conversion.enabled=true,managed.enabled=true"),
        *("--set", f"image.repository={IMAGE}", *shown),
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_a_converted_pod_waits_at_the_gate_of_its_queue(opted_in: OptedIn) -> None:
    """In managed mode the gate's policy sees the queue and the claim that conversion has written."""
    cluster, name = opted_in.cluster, opted_in.names["managed"]
    policies = [one for one in rendered("managed-gate.yaml") if "Policy" in one["kind"]]
    pod = sleeper("kai", annotations={"gpu-memory": "4096"}, scheduler="kai-scheduler")
    pod["metadata"]["labels"] = {"kai.scheduler/queue": "team-a"}
    cluster.kubectl("label", "namespace", name, "queue.gpudra.io/team-a=true")
    cluster.kubectl(*APPLY, stdin=yaml.safe_dump_all(policies))
    try:
        deadline = time.monotonic() + 60
        while not (found := admitted(opted_in, pod)).get("schedulingGates"):
            assert time.monotonic() < deadline, f"no gate: {found}"
        assert found["schedulingGates"] == [{"name": "gpudra.io/admission"}]
        assert found["nodeSelector"] == {"gpudra.io/managed": "true"}
        (claim,) = found["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == "gpudra-nvidia-1x-share-m4096"
    finally:
        cluster.kubectl(
            "delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(policies)
        )
        until_settled(cluster, name, gated=False)


def admitted(opted_in: OptedIn, pod: dict[str, Any]) -> dict[str, Any]:
    """The spec of a pod in managed mode after admission; empty while it is refused."""
    try:
        spec: dict[str, Any] = opted_in.dry_run(pod, "managed")["spec"]
    except ApiError:
        return {}
    return spec


@pytest.fixture
def kinds(cluster: Cluster) -> Iterator[None]:
    """Our kinds of managed mode, and a stand-in for Volcano's Job that takes anything."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    there = {one["metadata"]["name"] for one in cluster.client.request("GET", crds)["items"]}
    wanted = [
        yaml.safe_load((CHART / "crds" / file).read_text())
        for file in ("queues.yaml", "podgroups.yaml")
    ]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True}
    job = {
        "group": "batch.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "Job", "plural": "jobs"},
        "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
    }
    wanted.append(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "jobs.batch.volcano.sh"},
            "spec": job,
        }
    )
    new = [one for one in wanted if one["metadata"]["name"] not in there]
    cluster.kubectl(*APPLY, stdin=yaml.safe_dump_all(wanted))
    try:
        for one in wanted:
            cluster.wait_for(crds, one["metadata"]["name"], established, what="to be served")
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(new))


def established(crd: dict[str, Any]) -> bool:
    """Whether objects of a kind can be made."""
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def test_every_example_of_the_guides_is_valid(
    cluster: Cluster, namespace: str, kinds: None
) -> None:
    """The API server takes what the guides show as the result."""
    for example in examples():
        for raw in yaml.safe_load_all(example.after):
            version, kind = raw["apiVersion"], raw["kind"]
            base = CORE if version == "v1" else f"/apis/{version}"
            place = "" if kind == "Queue" else f"/namespaces/{namespace}"
            cluster.client.request("POST", f"{base}{place}/{kind.lower()}s?dryRun=All", raw)


def sleeper(name: str, script: str = "exec sleep infinity", **parts: Any) -> dict[str, Any]:
    """A pod that stays, with more metadata and one container's resources and variables."""
    pod = busybox_pod(name, script)
    container = pod["spec"]["containers"][0]
    container["resources"] = {"limits": parts.get("limits", {})}
    container["env"] = [{"name": key, "value": text} for key, text in parts.get("env", {}).items()]
    pod["metadata"]["annotations"] = parts.get("annotations", {})
    pod["spec"]["schedulerName"] = parts.get("scheduler", "default-scheduler")
    return pod


def results(cluster: Cluster, namespace: str, pod: str) -> list[dict[str, Any]]:
    """What the claims of a pod got, once they have been allocated."""

    def allocated(items: dict[str, Any]) -> list[dict[str, Any]] | None:
        mine = [
            one
            for one in items.values()
            if one["metadata"]["ownerReferences"][0]["name"] == pod
            and "allocation" in one.get("status", {})
        ]
        return [
            result for one in mine for result in one["status"]["allocation"]["devices"]["results"]
        ] or None

    path = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    return cluster.wait_list(path, allocated, what=f"claims of {pod} to be allocated", timeout=180)


def refusal(cluster: Cluster, namespace: str, pod: str) -> str:
    """What the controller says about a pod."""

    def said(items: dict[str, Any]) -> str | None:
        for one in items.values():
            about = one.get("regarding") or {}
            if one["reason"] == "ConversionRefused" and about.get("name") == pod:
                return str(one["note"])
        return None

    return cluster.wait_list(
        f"{EVENTS}/namespaces/{namespace}/events", said, what=f"an Event on {pod}"
    )


def test_a_pod_of_hami_runs_with_its_share(opted_in: OptedIn, team: str) -> None:
    """Made with HAMi's words: admitted, template made, allocated by the stock scheduler, running.

    The simulated node has nothing that limits a share, and the pod says that it wants no limit.
    """
    cluster = opted_in.cluster
    limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    annotations = {"nvidia.com/use-gputype": "A100,H100", "hami.io/gpu-scheduler-policy": "numa"}
    env = {"CUDA_DISABLE_CONTROL": "true"}
    pod = sleeper(
        "hami", limits=limits, annotations=annotations, env=env, scheduler="hami-scheduler"
    )
    cluster.apply(pod, namespace=team)
    cluster.wait_pod(team, "hami", timeout=180)
    found = results(cluster, team, "hami")
    assert [one["consumedCapacity"] for one in found] == 2 * [{"memory": "3000Mi", "compute": "30"}]
    assert len({one["device"] for one in found}) == 2
    environment = cluster.kubectl("exec", "-n", team, "hami", "--", "env")
    assert environment.count("GPUDRA_DEVICE_") == 2


def test_pods_of_kai_and_volcano_get_what_they_ask_for(opted_in: OptedIn, team: str) -> None:
    """Half of a card in MiB of that card, and a whole card; each by words of its own."""
    cluster = opted_in.cluster
    half = sleeper("kai", annotations={"gpu-fraction": "0.5"}, scheduler="kai-scheduler")
    whole = sleeper("volcano", limits={"volcano.sh/vgpu-number": "1"}, scheduler="volcano")
    cluster.apply(half, whole, namespace=team)
    (share,) = results(cluster, team, "kai")
    template = cluster.get(
        f"{RESOURCE}/namespaces/{team}/resourceclaimtemplates", "gpudra-nvidia-1x-share-f5000"
    )
    sizes = template["metadata"]["annotations"][CARD_SIZES].split(",")
    halves = {str(Quantity.bytes(Quantity.parse(one).value // 2**21 * 2**20)) for one in sizes}
    assert share["consumedCapacity"]["memory"] in halves
    cluster.wait_pod(team, "volcano", timeout=180)
    (card,) = results(cluster, team, "volcano")
    assert "consumedCapacity" not in card


def test_what_cannot_be_had_leaves_the_pod_and_is_named(opted_in: OptedIn, team: str) -> None:
    """The pod keeps its words, and an Event names field and value."""
    cluster = opted_in.cluster
    pod = sleeper("wrong", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"})
    cluster.apply(pod, namespace=team)
    said = refusal(cluster, team, "wrong")
    assert "spec.containers[0].resources.limits[nvidia.com/gpumem]: '16Gi'" in said
    stored = cluster.get(f"{CORE}/namespaces/{team}/pods", "wrong")
    assert "resourceClaims" not in stored["spec"]
    assert stored["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == "16Gi"


def test_a_template_of_somebody_else_is_left_alone(opted_in: OptedIn, team: str) -> None:
    """Same name, other content: the template stays, and an Event on the pod names the difference."""
    cluster = opted_in.cluster
    mine = template_of(Ask(form=Form.SHARE, memory=7777))
    mine["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    cluster.apply(mine, namespace=team)
    cluster.apply(
        sleeper("stranger", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "7777"}),
        namespace=team,
    )
    said = refusal(cluster, team, "stranger")
    assert "gpudra-nvidia-1x-share-m7777 exists with other content" in said
    assert "spec.spec.devices.requests[0].exactly.count is 2, not 1" in said
    name = mine["metadata"]["name"]
    stored = cluster.get(f"{RESOURCE}/namespaces/{team}/resourceclaimtemplates", name)
    assert stored["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 2
