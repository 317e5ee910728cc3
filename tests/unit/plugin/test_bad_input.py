# SPDX-License-Identifier: Apache-2.0
"""Claims that cannot be served, beside one that can, in the same call of the kubelet.

Each is answered for itself, by the name of what is wrong; the good one is prepared, and of the others
nothing is left, on the node or in the answer.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudra.driver.core.sharing import Backend
from gpudra.kubelet_plugin.records import ClaimRef
from tests.support.formsnode import FormsNode, hardware, isolation
from tests.support.plugin import DRIVER, claim_object, uid


def opaque(kind: str = "ShareConfig", *requests: str, **fields: Any) -> dict[str, Any]:
    """One entry of ``allocation.devices.config``."""
    parameters = {"apiVersion": "gpudra.io/v1alpha1", "kind": kind, **fields}
    return {
        "source": "FromClaim",
        "requests": list(requests),
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }


def shared(**sharing: Any) -> Callable[[FormsNode], ClaimRef]:
    """A share whose configuration has these fields below ``sharing``."""
    return lambda node: node.claim(1, node.share(0), config=(opaque(sharing=sharing),))


def mps(**limits: Any) -> Callable[[FormsNode], ClaimRef]:
    """A whole card with these limits of MPS."""
    config = opaque("GpuConfig", sharing={"isolation": "mps", "mps": limits})
    return lambda node: node.claim(1, node.device(0), config=(config,))


def amounts(**capacity: str) -> Callable[[FormsNode], ClaimRef]:
    """A share of these amounts."""

    def ask(node: FormsNode) -> ClaimRef:
        result = {**node.share(0), "consumedCapacity": {"compute": "0", **capacity}}
        return node.claim(1, result, config=(isolation("none"),))

    return ask


def device(**result: Any) -> Callable[[FormsNode], ClaimRef]:
    """A claim with this result."""
    return lambda node: node.claim(1, {"device": node.device(0), **result})


def configured(config: dict[str, Any]) -> Callable[[FormsNode], ClaimRef]:
    """A whole card with this configuration."""
    return lambda node: node.claim(1, node.device(0), config=(config,))


ALIEN = {"apiVersion": "gpudra.io/v9", "kind": "GpuConfig"}
BAD: dict[str, tuple[Callable[[FormsNode], ClaimRef], str]] = {
    "a field that is not known": (shared(isolaton="none"), "sharing.isolaton"),
    "a backend that is not known": (shared(isolation="magic"), "sharing.isolation"),
    "a time slice that is none": (
        shared(isolation="time-slice", timeSlice="fast"),
        "sharing.timeSlice",
    ),
    "a time slice without its backend": (
        shared(isolation="none", timeSlice="long"),
        "sharing.timeSlice",
    ),
    "no per cent": (mps(activeThreadPercentage=0), "sharing.mps.activeThreadPercentage"),
    "too many per cent": (mps(activeThreadPercentage=101), "sharing.mps.activeThreadPercentage"),
    "a unit that is none": (mps(pinnedMemoryLimit="10Gib"), "sharing.mps.pinnedMemoryLimit"),
    "a size below zero": (mps(pinnedMemoryLimit="-1Gi"), "sharing.mps.pinnedMemoryLimit"),
    "a size that is no whole MiB": (mps(pinnedMemoryLimit="1500"), "sharing.mps.pinnedMemoryLimit"),
    "a uuid that is none": (
        mps(pinnedMemoryLimits={"card one": "1Gi"}),
        "sharing.mps.pinnedMemoryLimits",
    ),
    "a kind that is not known": (configured(opaque("TpuConfig")), "TpuConfig"),
    "a version that is not known": (
        configured({**opaque(), "opaque": {"driver": DRIVER, "parameters": ALIEN}}),
        "gpudra.io/v9",
    ),
    "a kind for another form": (configured(opaque("ShareConfig", "gpu")), "ShareConfig"),
    "a backend that the node has not": (shared(isolation="mps"), "isolation mps"),
    "a backend that the policy forbids": (
        shared(isolation="time-slice"),
        "the node's policy does not allow it",
    ),
    "a share of nothing": (amounts(memory="0"), "takes 0 of memory"),
    "a share of less than a MiB": (amounts(memory="1000000"), "no whole number of MiB"),
    "a share of more than the card": (amounts(memory="90Gi"), "90Gi|92160Mi"),
    "compute beyond the card": (amounts(memory="1Gi", compute="101"), "takes 101 of compute"),
    "a device that is not here": (device(device="gpu-nowhere"), "gpu-nowhere"),
    "a device of another node": (device(pool="node-b"), "pool node-b"),
    "a watcher that is no admin": (
        lambda node: node.claim(1, node.device(0, "monitor")),
        "without admin access",
    ),
    "a claim that is not reserved": (
        lambda node: node.api.put(claim_object(uid(1), "c1", node.device(0), reserved=False)),
        "not reserved",
    ),
    "a claim that is another by now": (
        lambda node: ClaimRef(uid(77), "default", node.claim(1, node.device(0)).name),
        "another uid",
    ),
    "a claim that is gone": (lambda node: ClaimRef(uid(1), "default", "none"), "does not exist"),
    "a uid that is a path": (lambda node: ClaimRef("../../x", "default", "c1"), "../../x"),
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FormsNode]:
    """Cards that can be shared, without MPS."""
    with hardware("simulated", tmp_path) as found:
        made = FormsNode(tmp_path / "node", found.lib)
        yield made
        made.end()


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_claim_is_named_and_harms_no_other(node: FormsNode, what: str) -> None:
    """Its own answer says what is wrong, with the claim; the neighbour is prepared."""
    ask, words = BAD[what]
    good = node.claim(9, node.device(3))
    bad = ask(node)
    plugin = await node.start()
    settings = plugin.backends.settings
    allowed = frozenset(Backend) - {Backend.TIME_SLICE}
    if "policy" in what:
        plugin.backends.settings = type(settings)(runtime_dir=settings.runtime_dir, allowed=allowed)
    before = node.picture()
    refused, served = await plugin.prepare(bad, good)
    assert served.ok, served.error
    assert any(one in refused.error for one in words.split("|")), refused.error
    assert set(plugin.state.records) == {good.uid}
    assert (await plugin.unprepare(good))[0].ok
    assert node.picture() == before
    plugin.end()


async def test_devices_of_two_drivers_in_one_claim_are_each_drivers_own(node: FormsNode) -> None:
    """This driver prepares what is its own and says nothing of the rest."""
    other = {"driver": "nic.example.com", "device": "nic-0", "pool": "somewhere"}
    ref = node.claim(1, node.device(0), other)
    plugin = await node.start()
    (answer,) = await plugin.prepare(ref)
    assert [device for _, _, device, _ in answer.devices] == [node.device(0)]
    plugin.end()
