# SPDX-License-Identifier: Apache-2.0
"""Every folder of deploy/examples on the real cluster: what its README promises is what happens.

One row a folder. The example is applied as a user would, what its containers see is compared
with what the scheduler allocated, and after its deletion no device is held any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.api.resource_v1 import ResourceClaim, ResourceSlice
from gpudra.controller.ctl.devices import DeviceView, device_views
from gpudra.controller.ctl.local.layout import checkout_dir
from tests.support.cluster import CORE, RESOURCE, Cluster

EXAMPLES = checkout_dir() / "deploy" / "examples"
# Those that need managed mode are run by tests.e2e.test_managed_examples.
MANAGED = ("gang", "lending", "queue", "topology-gang", "two-teams")
CLASSES = checkout_dir() / "deploy" / "manifests" / "deviceclasses.yaml"
DRIVER = "gpu.gpudra.io"
GPUS_A_NODE = 8


@dataclass(frozen=True)
class Seen:
    """What can be observed while an example runs.

    Attributes:
        gpus: uuids in the environment, by pod and container.
        nodes: GPU device files, by pod and container.
        claims: of the example's namespace.
        views: every device of the cluster with its holders.
    """

    gpus: dict[tuple[str, str], frozenset[str]]
    nodes: dict[tuple[str, str], frozenset[str]]
    claims: tuple[ResourceClaim, ...]
    views: tuple[DeviceView, ...]

    def held(self, *, admin: bool = False) -> list[DeviceView]:
        """Devices that the claims hold (or, for administrators, look at)."""
        keys = {claim.key for claim in self.claims}
        return [
            view
            for view in self.views
            if any(one.claim in keys and one.admin_access is admin for one in view.holders)
        ]

    def values(self, attribute: str) -> list[object]:
        """An attribute of every held device."""
        return [view.attribute(attribute) for view in self.held()]


Check = Callable[[Seen], None]


def one_gpu(seen: Seen) -> None:
    """One container, one GPU, one claim."""
    assert [len(found) for found in seen.gpus.values()] == [1]
    assert len(seen.held()) == len(seen.claims) == 1


def two_distinct(seen: Seen) -> None:
    """Each container has one GPU, and not the other's."""
    left = seen.gpus["two-distinct-gpus", "left"]
    right = seen.gpus["two-distinct-gpus", "right"]
    assert len(left) == len(right) == 1
    assert left != right


def same_switch(seen: Seen) -> None:
    """Two GPUs, one PCIe switch."""
    switches = seen.values("pcieSwitch")
    assert len(switches) == 2
    assert len(set(switches)) == 1
    assert switches[0] is not None


def nvlink(seen: Seen) -> None:
    """Four GPUs, one NVLink domain, one node."""
    domains = seen.values("nvlinkDomain")
    assert len(domains) == 4
    assert len(set(domains)) == 1
    assert domains[0] is not None


def shared(first: tuple[str, str], second: tuple[str, str]) -> Check:
    """Both see the same single GPU."""

    def check(seen: Seen) -> None:
        assert len(seen.gpus[first]) == 1
        assert seen.gpus[first] == seen.gpus[second]
        assert len(seen.held()) == len(seen.claims) == 1

    return check


def second_choice(seen: Seen) -> None:
    """No card has 200 GiB, so the pair was taken."""
    (claim,) = seen.claims
    assert claim.status.allocation is not None
    results = claim.status.allocation.devices.results
    assert [result.request for result in results] == ["gpu/pair", "gpu/pair"]
    assert [len(found) for found in seen.gpus.values()] == [2]


def all_of_a_node(seen: Seen) -> None:
    """The administrator sees every GPU of one node, and none is taken away."""
    (found,) = seen.gpus.values()
    assert len(found) == len(seen.held(admin=True)) == GPUS_A_NODE
    assert seen.held() == []


def part_by_profile(seen: Seen) -> None:
    """The uuid is that of an instance, and the profile the one asked for."""
    ((found,),) = seen.gpus.values()
    assert found.startswith("MIG-")
    assert seen.values("profile") == ["3g.40gb"]


def shares(seen: Seen) -> None:
    """Two claims, one card, and what each has reserved."""
    first, second = seen.gpus.values()
    assert len(first) == 1
    assert first == second
    for claim in seen.claims:
        assert consumed(claim) == [{"memory": "10Gi", "compute": "30"}]


def same_numa(seen: Seen) -> None:
    """Two GPUs, one NUMA node."""
    nodes = seen.values("resource.kubernetes.io/numaNode")
    assert len(nodes) == 2
    assert len(set(nodes)) == 1


def parts_of_one_card(seen: Seen) -> None:
    """Three instances, one card."""
    assert sorted(map(str, seen.values("profile"))) == ["1g.10gb", "1g.10gb", "3g.40gb"]
    assert len(set(seen.values("parentUUID"))) == 1
    ((*found,),) = seen.gpus.values()
    assert len(found) == 3


def memory_alone(seen: Seen) -> None:
    """What is not asked for has the default of the device."""
    (claim,) = seen.claims
    assert consumed(claim) == [{"memory": "20Gi", "compute": "0"}]


def different_cards(seen: Seen) -> None:
    """Two shares, two cards."""
    ((*found,),) = seen.gpus.values()
    assert len(found) == 2
    assert consumed(seen.claims[0]) == [{"memory": "8Gi", "compute": "20"}] * 2


def whole_node(seen: Seen) -> None:
    """Every GPU of one node, and they are held."""
    (found,) = seen.gpus.values()
    assert len(found) == len(seen.held()) == GPUS_A_NODE
    assert len({view.pool for view in seen.held()}) == 1


def tainted(seen: Seen) -> None:
    """Who tolerates the taint is on the tainted node, and the other one is not."""
    pools = {}
    for claim in seen.claims:
        assert claim.status.allocation is not None
        (result,) = claim.status.allocation.devices.results
        pools[claim.status.reserved_for[0].name] = result.pool
    assert pools == {"stays-away": "node-2", "tolerates": "node-1"}


def consumed(claim: ResourceClaim) -> list[dict[str, str]]:
    """What each result of a claim has reserved."""
    assert claim.status.allocation is not None
    results = claim.status.allocation.devices.results
    return [{name: str(n) for name, n in one.consumed_capacity.items()} for one in results]


def extended_resource(seen: Seen) -> None:
    """Two GPUs through a claim that the scheduler made."""
    (claim,) = seen.claims
    assert claim.metadata.annotations["resource.kubernetes.io/extended-resource-claim"] == "true"
    assert [len(found) for found in seen.gpus.values()] == [2]


@dataclass(frozen=True)
class Example:
    """One row: the folder, what to check, and where its objects go."""

    folder: str
    check: Check
    namespace: str = ""
    pods: tuple[str, ...] = field(default=())

    @property
    def file(self) -> Path:
        """What the README applies."""
        return EXAMPLES / self.folder / "example.yaml"

    def documents(self) -> list[dict[str, Any]]:
        """Its objects."""
        return list(yaml.safe_load_all(self.file.read_text()))


TABLE = (
    Example("one-gpu", one_gpu),
    Example("two-distinct-gpus", two_distinct),
    Example("same-pcie-switch", same_switch),
    Example("nvlink-domain", nvlink),
    Example(
        "shared-by-containers",
        shared(("shared-by-containers", "trainer"), ("shared-by-containers", "exporter")),
    ),
    Example("shared-by-pods", shared(("sharer-1", "main"), ("sharer-2", "main"))),
    Example("first-available", second_choice),
    Example("admin-access", all_of_a_node, namespace="gpu-admin"),
    Example("mig-profile", part_by_profile),
    Example("share", shares),
    Example("share-by-memory", memory_alone),
    Example("shares-on-different-cards", different_cards),
    Example("mig-parts-of-one-card", parts_of_one_card),
    Example("same-numa-node", same_numa),
    Example("all-of-a-node", whole_node),
    Example("cel-by-memory", one_gpu),
    Example("taint-and-toleration", tainted),
    Example("monitor", all_of_a_node, namespace="gpu-monitor"),
    Example("unchanged-pod", extended_resource),
)


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Cluster:
    """The cluster once the classes exist and both nodes have published everything."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CLASSES))
    wanted = GPUS_A_NODE * len(cluster.state.nodes)
    cluster.wait_list(
        f"{RESOURCE}/resourceslices",
        lambda items: len(items) >= wanted,
        what=f"{wanted} slices",
        query=f"fieldSelector=spec.driver%3D{DRIVER}",
    )
    return cluster


@pytest.fixture
def place(driver: Cluster, namespace: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the example's objects go, empty before and afterwards."""
    example: Example = request.getfixturevalue("example")
    yield example.namespace or namespace
    if example.namespace:
        driver.kubectl("delete", "namespace", example.namespace, "--ignore-not-found")


def observe(cluster: Cluster, namespace: str, pods: list[dict[str, Any]]) -> Seen:
    """Looks into every container, and at claims and slices."""
    gpus, nodes = {}, {}
    for pod in pods:
        for container in pod["spec"]["containers"]:
            where = (pod["metadata"]["name"], container["name"])
            gpus[where] = frozenset(
                line.partition("=")[2]
                for line in inside(cluster, namespace, where, "env").splitlines()
                if line.startswith("GPUDRA_DEVICE_")
            )
            files = inside(cluster, namespace, where, "ls", "/dev").split()
            nodes[where] = frozenset(
                name for name in files if name.removeprefix("nvidia").isdecimal()
            )
    return Seen(gpus, nodes, *devices_and_claims(cluster, namespace))


def inside(cluster: Cluster, namespace: str, where: tuple[str, str], *command: str) -> str:
    """Output of a command in a container."""
    pod, container = where
    return cluster.kubectl("exec", "-n", namespace, pod, "-c", container, "--", *command)


def devices_and_claims(
    cluster: Cluster, namespace: str
) -> tuple[tuple[ResourceClaim, ...], tuple[DeviceView, ...]]:
    """The claims of a namespace, and all devices with all their holders."""
    slices = cluster.client.request("GET", f"{RESOURCE}/resourceslices")["items"]
    claims = [
        ResourceClaim.from_dict(raw)
        for raw in cluster.client.request("GET", f"{RESOURCE}/resourceclaims")["items"]
    ]
    views = device_views([ResourceSlice.from_dict(raw) for raw in slices], claims, DRIVER)
    return tuple(one for one in claims if one.metadata.namespace == namespace), views


def nothing_is_left(cluster: Cluster, claims: tuple[ResourceClaim, ...]) -> bool:
    """Whether no node has a CDI file of these claims."""
    uids = [claim.metadata.uid for claim in claims]
    return not any(
        uid in file.name
        for node in cluster.state.nodes
        for file in Path(node.cdi_dir).iterdir()
        for uid in uids
    )


def test_every_folder_has_a_row() -> None:
    """An example that nobody tests is not an example; each says what to see and how to clean up."""
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert folders == sorted([*(example.folder for example in TABLE), *MANAGED])
    for folder in folders:
        text = (EXAMPLES / folder / "README.md").read_text()
        assert "## What you should see" in text
        assert "## Clean up" in text
        assert f"({folder}/README.md)" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("example", TABLE, ids=lambda example: example.folder)
def test_the_example_does_what_it_says(driver: Cluster, place: str, example: Example) -> None:
    """Applied, running, seen as promised; deleted, and nothing is left of it."""
    documents = example.documents()
    pods = [one for one in documents if one["kind"] == "Pod"]
    apply(driver, example, place)
    for pod in pods:
        driver.wait_pod(place, pod["metadata"]["name"])

    seen = observe(driver, place, pods)
    example.check(seen)
    assert_containers_see_what_was_allocated(seen)

    driver.kubectl("delete", *where(example, place), "--wait=true")
    driver.wait_list(
        f"{RESOURCE}/namespaces/{place}/resourceclaims",
        lambda items: not items,
        what="the claims to be gone",
    )
    assert nothing_is_left(driver, seen.claims)


def apply(cluster: Cluster, example: Example, place: str) -> None:
    """``kubectl apply`` as in the README; a new namespace needs its account before its pods."""
    if example.namespace:
        cluster.kubectl("create", "namespace", example.namespace)
    cluster.wait_for(
        f"{CORE}/namespaces/{place}/serviceaccounts", "default", lambda _: True, what="to exist"
    )
    cluster.kubectl("apply", *where(example, place))


def where(example: Example, place: str) -> tuple[str, ...]:
    """The file, and the namespace unless the file names its own."""
    return ("-f", str(example.file), *(() if example.namespace else ("-n", place)))


def assert_containers_see_what_was_allocated(seen: Seen) -> None:
    """Together the containers have exactly the allocated cards, and a device file for each."""
    views = [view for admin in (False, True) for view in seen.held(admin=admin)]
    held = {view.attribute("uuid") for view in views if view.attribute("type") != "mig"}
    given = frozenset[str]().union(*seen.gpus.values())
    # An instance gets its uuid when it is made, which no slice tells beforehand.
    made = {uuid for uuid in given if uuid.startswith("MIG-")}
    assert given - made == held
    assert len(made) == len(views) - len(held)
    for place, found in seen.gpus.items():
        # The instances of an example are on one card, and share its file.
        parts = {uuid for uuid in found if uuid.startswith("MIG-")}
        assert len(seen.nodes[place]) == len(found - parts) + bool(parts)


def test_without_the_constraint_first_fit_crosses_switches(driver: Cluster, namespace: str) -> None:
    """With one GPU of a switch held, two GPUs lie on two switches; with it, never.

    All on one node: on the other one no GPU would be held.
    """
    node = driver.state.nodes[0].name
    folder = EXAMPLES / "same-pcie-switch"
    found = {}
    for file in (
        EXAMPLES / "one-gpu/example.yaml",
        folder / "without-constraint.yaml",
        folder / "example.yaml",
    ):
        documents = [pinned(one, node) for one in yaml.safe_load_all(file.read_text())]
        driver.apply(*documents, namespace=namespace)
        name = next(one["metadata"]["name"] for one in documents if one["kind"] == "Pod")
        driver.wait_pod(namespace, name)
        _, views = devices_and_claims(driver, namespace)
        found[name] = [
            view.attribute("pcieSwitch")
            for view in views
            if any(holder.consumers == (name,) for holder in view.holders)
        ]
    assert len(found["one-gpu"]) == 1
    assert len(set(found["any-two-gpus"])) == 2
    assert len(found["same-pcie-switch"]) == 2
    assert len(set(found["same-pcie-switch"])) == 1


def pinned(found: dict[str, Any], node: str) -> dict[str, Any]:
    """The object, its pod bound to a node by its labels."""
    if found["kind"] == "Pod":
        found["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return found
