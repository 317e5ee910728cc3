# SPDX-License-Identifier: Apache-2.0
"""Every form at once on one node: agent, kubelet and containerd are real, NVML is the fake one.

What counts is what each container sees, and that the fake library's state is in the end what it
was before the first pod.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import CORE, RESOURCE, Cluster, Object, busybox_pod
from tests.support.formsnode import decoy_library
from tests.support.nvmlagent import NvmlAgent, nvml_agent

DRIVER = "prepared.test.gpudra.io"
CLASS = f"any.{DRIVER}"
NODE = "node-1"
CARDS = 8
METADATA = "/var/run/kubernetes.io/dra-device-attributes"
MERGE_PATCH = "application/merge-patch+json"
RBAC = "rbac.authorization.k8s.io"


def _objects() -> list[Object]:
    """A class for everything of this driver, and its right to report on claims of its node."""
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/driver"],
        "resourceNames": [DRIVER],
        "verbs": ["associated-node:update", "associated-node:patch"],
    }
    role = {"kind": "ClusterRole", "name": CLASS}
    agent = {
        "kind": "ServiceAccount", "name": "gpudra-kubelet-plugin", "namespace": "gpudra-system",
    }  # fmt: skip
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": CLASS},
            "rules": [rule],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": CLASS},
            "roleRef": {"apiGroup": RBAC, **role},
            "subjects": [agent],
        },
    ]


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[NvmlAgent]:
    """Eight H100 on node-1, with a library that looks like HAMi-core."""
    objects = _objects()
    cluster.apply(*objects)
    with tempfile.TemporaryDirectory(prefix="gpudra-hami-") as folder:
        library = decoy_library(Path(folder))
        options = [f"--hami-core-library={library}"]
        with nvml_agent(cluster, driver=DRIVER, node=NODE, options=options) as found:
            found.wait_devices(lambda cards: len(cards) == CARDS, "the cards to be published")
            yield found
    for one in objects:
        cluster.kubectl("delete", one["kind"], one["metadata"]["name"], "--ignore-not-found")


class Desk:
    """Asks for devices by pods, and looks into the containers."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
        self.pods = f"{CORE}/namespaces/{namespace}/pods"

    def ask(self, name: str, *selectors: str, config: Any = None, **exactly: Any) -> None:
        """A claim and a pod that uses it, both of this name."""
        request: Object = {"deviceClassName": CLASS, **exactly}
        request["selectors"] = [
            {"cel": {"expression": f'device.attributes["{DRIVER}"].{one}'}} for one in selectors
        ]
        devices: Object = {"requests": [{"name": "r", "exactly": request}]}
        if config is not None:
            devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": devices},
        }
        pod = busybox_pod(
            name,
            "exec sleep infinity",
            claims={"c": name},
            nodeSelector={"kubernetes.io/hostname": NODE},
        )
        self.cluster.apply(claim, pod, namespace=self.namespace)

    def inside(self, name: str, script: str) -> list[str]:
        """What a command in the pod's container writes, by line."""
        words = ("exec", "-n", self.namespace, name, "--", "/bin/sh", "-c", script)
        return self.cluster.kubectl(*words).splitlines()

    def result(self, name: str) -> Object:
        """The one allocated device of a claim."""
        claim = self.cluster.get(self.claims, name)
        (found,) = claim["status"]["allocation"]["devices"]["results"]
        assert isinstance(found, dict)
        return found

    def report(self, name: str) -> tuple[dict[str, tuple[str, str]], Object]:
        """Conditions and data that the agent has written, once they are there."""

        def told(claim: Object) -> Object | None:
            found = claim.get("status", {}).get("devices")
            return dict(found[0]) if found else None

        entry = self.cluster.wait_for(self.claims, name, told, what="to be reported on")
        conditions = {one["type"]: (one["status"], one["reason"]) for one in entry["conditions"]}
        return conditions, entry["data"]

    def give_back(self, *names: str) -> None:
        """The pods end and the claims go."""
        for name in names:
            self.cluster.client.request("DELETE", f"{self.pods}/{name}")
            self.cluster.client.request("DELETE", f"{self.claims}/{name}")
        for name in names:
            self.cluster.wait_gone(self.claims, name)


@pytest.fixture
def desk(cluster: Cluster, namespace: str) -> Desk:
    """In a namespace in which admins may look at cards."""
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    cluster.client.request(
        "PATCH", f"{CORE}/namespaces/{namespace}", label, content_type=MERGE_PATCH
    )
    return Desk(cluster, namespace)


NAMES = ("one", "three", "share", "whole", "monitor")


def test_every_form_at_once_on_one_node(agent: NvmlAgent, desk: Desk) -> None:
    """1g, 3g, a share, a whole card and a monitor; then everything is as it was."""
    before = agent.machine.dump()
    desk.ask("one", 'type == "mig"', 'profile == "1g.10gb"')
    desk.ask("three", 'type == "mig"', 'profile == "3g.40gb"')
    desk.ask("share", 'type == "share"', capacity={"requests": {"memory": "10Gi", "compute": "30"}})
    desk.ask("whole", 'type == "gpu"')
    desk.ask("monitor", 'type == "monitor"', adminAccess=True)
    for name in NAMES:
        desk.cluster.wait_pod(desk.namespace, name)
    check_parts(agent, desk)
    check_share(desk)
    check_cards(desk)
    check_metadata(desk)
    desk.give_back(*NAMES)
    assert agent.machine.dump() == before


def variable(desk: Desk, name: str) -> str:
    """The value of the container's one variable that names a device."""
    (line,) = desk.inside(name, "env | grep ^GPUDRA_DEVICE_")
    return line.partition("=")[2]


def nodes(desk: Desk, name: str) -> set[str]:
    """Device nodes of NVIDIA in the container."""
    return set(desk.inside(name, "cd /dev && ls -d nvidia[0-9]* nvidia-caps/* 2>/dev/null || true"))


def check_parts(agent: NvmlAgent, desk: Desk) -> None:
    """Each MIG container sees its parent's node and two capability nodes of its own."""
    made = {variable(desk, name) for name in ("one", "three")}
    assert all(uuid.startswith("MIG-") for uuid in made)
    assert len(made) == 2
    dump = str(agent.machine.dump())
    assert all(uuid in dump for uuid in made)
    caps = {name: {one for one in nodes(desk, name) if "cap" in one} for name in ("one", "three")}
    assert [len(found) for found in caps.values()] == [2, 2]
    assert caps["one"] & caps["three"] == set()
    for name in ("one", "three"):
        conditions, data = desk.report(name)
        assert conditions == {"Ready": ("True", "Prepared"), "Isolated": ("True", "MIG")}
        assert data["uuid"] == variable(desk, name)


def check_metadata(desk: Desk) -> None:
    """Each container finds the file about its device (KEP-5304), and cannot change it."""
    forms = {"one": "mig", "three": "mig"}
    for name in NAMES:
        path = f"{METADATA}/resourceclaims/{name}/r/{DRIVER}-metadata.json"
        text = "\n".join(desk.inside(name, f"cat {path}; echo >> {path} || true"))
        newest, _ = json.JSONDecoder().raw_decode(text)
        assert newest["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
        (device,) = newest["requests"][0]["devices"]
        assert device["name"] == desk.result(name)["device"]
        told = device["attributes"]
        form = {"string": forms.get(name, {"whole": "gpu"}.get(name, name))}
        assert (told["type"], told["uuid"]) == (form, {"string": variable(desk, name)})


def check_share(desk: Desk) -> None:
    """The limits are in the environment, library and preload file mounted, the cache writable."""
    env = set(desk.inside("share", "env"))
    assert {"CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "CUDA_DEVICE_SM_LIMIT=30"} <= env
    library = "/run/gpudra/hami-core/libvgpu.so"
    assert desk.inside("share", "cat /etc/ld.so.preload") == [library]
    mounts = {line.split()[1]: line.split()[3] for line in desk.inside("share", "cat /proc/mounts")}
    assert mounts[library].startswith("ro")
    assert mounts["/run/gpudra/hami-core/cache"].startswith("rw")
    desk.inside("share", "touch /run/gpudra/hami-core/cache/mine")
    conditions, data = desk.report("share")
    assert conditions["Isolated"] == ("True", "HamiCore")
    assert data["limits"] == {"memory": "10240Mi", "compute": "30"}


def check_cards(desk: Desk) -> None:
    """Whole, share and monitor see one card; no two claims but the monitor have the same."""
    seen = {name: nodes(desk, name) for name in ("share", "whole", "monitor")}
    assert {name: len(found) for name, found in seen.items()} == {
        "share": 1,
        "whole": 1,
        "monitor": 2,
    }
    assert "nvidia-caps/nvidia-cap2" in seen["monitor"]
    assert seen["share"] != seen["whole"]
    cards = {name: "-".join(desk.result(name)["device"].split("-")[:3]) for name in NAMES[:4]}
    assert cards["whole"] not in {cards[name] for name in ("one", "three", "share")}
    assert cards["share"] not in {cards[name] for name in ("one", "three")}
    assert desk.report("whole")[0]["Isolated"] == ("True", "Exclusive")
    assert desk.report("monitor")[0]["Isolated"] == ("False", "Monitor")


def test_another_backend_on_a_card_is_refused_with_the_holder(agent: NvmlAgent, desk: Desk) -> None:
    """The pod waits, and its event says for whom."""
    before = agent.machine.dump()
    size = {"requests": {"memory": "5Gi"}}
    desk.ask("first", 'type == "share"', capacity=size)
    desk.cluster.wait_pod(desk.namespace, "first")
    asked = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "ShareConfig",
        "sharing": {"isolation": "none"},
    }
    desk.ask("second", 'type == "share"', capacity=size, config=asked)

    def refused(items: dict[str, Object]) -> str | None:
        notes = [one.get("message", one.get("note", "")) for one in items.values()]
        return next(
            (note for note in notes if "is shared by isolation hami-core for" in note), None
        )

    events = f"{CORE}/namespaces/{desk.namespace}/events"
    note = desk.cluster.wait_list(events, refused, what="the refusal")
    holder = desk.cluster.get(desk.claims, "first")["metadata"]["uid"]
    assert holder in note
    # The kubelet asks for the second one again after a minute and a half; a third one asks at once.
    desk.give_back("first", "second")
    desk.ask("third", 'type == "share"', capacity=size, config=asked)
    desk.cluster.wait_pod(desk.namespace, "third")
    desk.give_back("third")
    assert agent.machine.dump() == before


def test_a_card_goes_from_a_pod_deleted_by_force_to_the_next(agent: NvmlAgent, desk: Desk) -> None:
    """The next claim gets the card as soon as the containers of the last one have ended, not before."""
    before = agent.machine.dump()
    card = before["gpus"][0]["uuid"]
    selectors = ('type == "gpu"', f'uuid == "{card}"')
    desk.ask("first", *selectors)
    desk.cluster.wait_pod(desk.namespace, "first")
    holder = desk.cluster.get(desk.claims, "first")["metadata"]["uid"]
    words = ("delete", "-n", desk.namespace, "pod", "first", "--grace-period=0", "--force")
    desk.cluster.kubectl(*words)
    desk.cluster.client.request("DELETE", f"{desk.claims}/first")
    desk.ask("second", *selectors)
    # Seconds as a rule; a kubelet that was refused once asks again after a minute and a half.
    desk.cluster.wait_pod(desk.namespace, "second", timeout=200)
    late = desk.cluster.get(desk.claims, "second")["metadata"]["uid"]
    lines = [json.loads(line) for line in agent.log.read_text().splitlines() if line[:1] == "{"]
    told = [(one["event"], one.get("claim_uid")) for one in lines]
    assert told.index(("unprepared", holder)) < told.index(("prepared", late))
    desk.give_back("second")
    assert agent.machine.dump() == before
