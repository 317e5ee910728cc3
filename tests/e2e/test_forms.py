# SPDX-License-Identifier: Apache-2.0
"""Forms of a card given out by the stock kube-scheduler.

A pool of its own, under a driver of its own, is published for node-1 by the slice controller. No
agent serves that driver, so the pods stay where the scheduler put them: what counts is what their
claims got.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gpudra.controller.resourceslices import ResourceSliceController
from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.core.resourceslices import ALL_FEATURES, build_pool
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware
from gpudra.driver.kube.client import KubeClient
from tests.support.cluster import CORE, RESOURCE, Cluster, busybox_pod

DRIVER = "forms.test.gpudra.io"
NODE = "node-1"
CARDS = 8
TYPES = {"whole": "gpu", "mig": "mig", "share": "share", "monitor": "monitor"}


async def _publish(cluster: Cluster) -> None:
    async with await KubeClient.load(str(cluster.layout.admin_kubeconfig)) as client:
        inventory = build_inventory(load_hardware("dgx-h100-8x80"), node_name="forms")
        controller = ResourceSliceController(client, driver=DRIVER, pool_name=NODE, node_name=NODE)
        running = asyncio.create_task(controller.run())
        controller.set_desired(
            build_pool(
                inventory, node_name=NODE, driver=DRIVER, features=ALL_FEATURES, policy=EVERYTHING
            )
        )
        await asyncio.wait_for(controller.wait_synced(), timeout=60)
        await controller.stop()
        await running


def _class(word: str) -> dict[str, Any]:
    expression = (
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{TYPES[word]}"'
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{word}.{DRIVER}"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


@pytest.fixture(scope="module", autouse=True)
def pool(cluster: Cluster) -> Iterator[None]:
    """Eight H100 in every form, and a class for each form."""
    cluster.apply(*map(_class, TYPES))
    asyncio.run(_publish(cluster))
    yield
    selector = f"--field-selector=spec.driver={DRIVER}"
    cluster.kubectl("delete", "resourceslices", selector, "--ignore-not-found")
    cluster.kubectl("delete", "deviceclass", *(f"{word}.{DRIVER}" for word in TYPES))


class Desk:
    """Asks for devices as people do: a claim, and a pod that uses it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
        self.pods = f"{CORE}/namespaces/{namespace}/pods"

    def ask(self, name: str, word: str, *selectors: str, **exactly: Any) -> None:
        """A claim of one class and its pod."""
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": one}} for one in selectors]
        exactly = {"deviceClassName": f"{word}.{DRIVER}", **exactly}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        }
        pod = busybox_pod(
            name, "true", claims={"c": name}, nodeSelector={"kubernetes.io/hostname": NODE}
        )
        self.cluster.apply(claim, pod, namespace=self.namespace)

    def got(self, name: str) -> list[dict[str, Any]]:
        """What the claim was given."""

        def allocated(claim: dict[str, Any]) -> list[dict[str, Any]] | None:
            found = claim.get("status", {}).get("allocation")
            return list(found["devices"]["results"]) if found else None

        return self.cluster.wait_for(self.claims, name, allocated, what="to be allocated")

    def device(self, name: str, word: str, *selectors: str, **exactly: Any) -> str:
        """Asks and waits; the device."""
        self.ask(name, word, *selectors, **exactly)
        (result,) = self.got(name)
        return str(result["device"])

    def refused(self, name: str) -> bool:
        """The scheduler has tried, and found no device."""

        def unschedulable(pod: dict[str, Any]) -> bool:
            conditions = pod.get("status", {}).get("conditions", ())
            return any(one.get("reason") == "Unschedulable" for one in conditions)

        return self.cluster.wait_for(self.pods, name, unschedulable, what="to find no device")

    def give_back(self, *names: str) -> None:
        """The pods end and the claims go."""
        for name in names:
            self.cluster.client.request("DELETE", f"{self.pods}/{name}")
            self.cluster.client.request("DELETE", f"{self.claims}/{name}")
        for name in names:
            self.cluster.wait_gone(self.claims, name)


@pytest.fixture
def desk(cluster: Cluster, namespace: str) -> Desk:
    """In a namespace that is emptied afterwards."""
    return Desk(cluster, namespace)


def profile(name: str) -> str:
    """Selects parts of one profile."""
    return f'device.attributes["{DRIVER}"].profile == "{name}"'


def card(device: str) -> str:
    """The card's part of a device's name."""
    return "-".join(device.split("-")[:3])


def test_two_halves_lie_on_one_card_and_a_whole_card_is_another(desk: Desk) -> None:
    """Two 3g claims share a card; while they do, it is not given out whole, nor shared."""
    first = desk.device("a", "mig", profile("3g.40gb"))
    second = desk.device("b", "mig", profile("3g.40gb"))
    whole = desk.device("c", "whole")
    share = desk.device("d", "share", capacity={"requests": {"memory": "1Gi"}})
    assert card(first) == card(second)
    assert first != second
    assert len({card(first), card(whole), card(share)}) == 3


def test_small_shares_lie_together_and_a_large_one_elsewhere(desk: Desk) -> None:
    """10Gi with 30 % and 10Gi fit one card; 75Gi does not fit beside them."""
    requests = {"memory": "10Gi", "compute": "30"}
    first = desk.device("a", "share", capacity={"requests": requests})
    second = desk.device("b", "share", capacity={"requests": {"memory": "10Gi"}})
    large = desk.device("c", "share", capacity={"requests": {"memory": "75Gi"}})
    assert first == second
    assert large != first
    (result,) = desk.got("a")
    assert result["consumedCapacity"] == {"memory": "10Gi", "compute": "30"}
    (result,) = desk.got("b")
    assert result["consumedCapacity"] == {"memory": "10Gi", "compute": "0"}


def test_everything_frees_again(desk: Desk) -> None:
    """Parts, shares and a whole card keep eight whole cards away until they are given back."""
    held = {
        "a": desk.device("a", "mig", profile("1g.10gb")),
        "b": desk.device("b", "share", capacity={"requests": {"memory": "10Gi"}}),
        "c": desk.device("c", "whole"),
    }
    assert len({card(device) for device in held.values()}) == 3
    desk.ask("all", "whole", count=CARDS)
    assert desk.refused("all")
    desk.give_back(*held)
    assert len({result["device"] for result in desk.got("all")}) == CARDS


def test_a_card_in_use_can_be_watched(desk: Desk) -> None:
    """The monitor takes nothing, so it is there while the card is taken whole, for many."""
    desk.ask("all", "whole", count=CARDS)
    assert len(desk.got("all")) == CARDS
    assert card(desk.device("m1", "monitor")) == card(desk.device("m2", "monitor"))
