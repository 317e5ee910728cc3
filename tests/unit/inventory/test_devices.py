# SPDX-License-Identifier: Apache-2.0
"""Names of devices, the table of attributes, and what a policy leaves out."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.names import check_dns_label, check_qualified_name
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device, DeviceTaint
from gpudra.api.semver import Semver
from gpudra.driver.core.allocatable import (
    DeviceKind,
    PublishPolicy,
    allocatable_devices,
    gpu_name,
)
from gpudra.driver.core.attributes import ATTRIBUTES, CAPACITIES
from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.resourceslices import ALL_FEATURES, build_pool
from gpudra.driver.core.slicediff import plan_slices
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware, profile_names


def _published(profile: str, policy: PublishPolicy | None = None) -> tuple[Device, ...]:
    inventory = build_inventory(load_hardware(profile), node_name="n")
    return build_pool(inventory, node_name="n", features=ALL_FEATURES, policy=policy).devices


def test_names_are_made_of_the_uuid() -> None:
    """Eight hex digits to recognise the card, four of a hash to tell similar uuids apart."""
    name = gpu_name(Gpu(uuid="GPU-2F9D6F9E-5a9c-5d0e-9f0c-6c1a2b3c4d5e"))
    assert name.startswith("gpu-2f9d6f9e-")
    assert len(name) == len("gpu-2f9d6f9e-0123")
    other = gpu_name(Gpu(uuid="GPU-2F9D6F9E-0000-0000-0000-000000000000"))
    assert other.startswith("gpu-2f9d6f9e-")
    assert other != name


@given(st.text(min_size=1, max_size=80))
def test_any_uuid_makes_a_legal_name(uuid: str) -> None:
    """Other vendors write other uuids; the name is a DNS label of one length all the same."""
    name = gpu_name(Gpu(uuid=uuid))
    check_dns_label(name, "name")
    assert len(name) == 17


def test_declared_cards_keep_their_declared_name() -> None:
    """Cards without uuid are named by whoever declares them."""
    assert gpu_name(Gpu(declared_name="npu-3")) == "npu-3"


def test_two_cards_of_one_name_cost_only_the_second() -> None:
    """A double declaration is reported; the first card stays published."""
    gpus = (Gpu(declared_name="npu-0", index=0), Gpu(declared_name="npu-0", index=1))
    pool = build_pool(Inventory(gpus=gpus), node_name="n", features=ALL_FEATURES)
    assert len(pool.devices) == 1
    assert "another card is device npu-0 already" in pool.problems[0]


def test_excluded_cards_are_not_published() -> None:
    """The policy names cards by their uuid."""
    inventory = build_inventory(load_hardware("a30-2x"))
    first, second = inventory.gpus
    policy = PublishPolicy(excluded=frozenset({first.key}))
    (device,) = allocatable_devices(inventory, policy)
    assert (device.gpu, device.kind) == (second, DeviceKind.WHOLE)


def test_the_table_tells_the_truth_about_names_and_types() -> None:
    """Every published attribute is in the table with its type, and the examples are of it."""
    kinds = {"string": str, "int": int, "bool": bool, "version": Semver}
    table = {spec.name: spec for spec in ATTRIBUTES}
    assert len(table) == len(ATTRIBUTES)
    seen: set[str] = set()
    for profile in profile_names():
        for device in _published(profile, EVERYTHING):
            seen |= device.attributes.keys()
            for name, value in device.attributes.items():
                assert type(value) is kinds[table[name].type]
            assert set(device.capacity) <= {spec.name for spec in CAPACITIES}
    # No shipped profile has a card with unified memory, and the default gives away none.
    assert table.keys() - seen <= {"unifiedMemory", "memoryOversubscription"}
    for spec in ATTRIBUTES:
        check_qualified_name(spec.name, "name")
        if spec.type == "int":
            int(spec.example)
        if spec.type == "version":
            Semver.parse(spec.example)


def test_an_h100_is_described_in_full() -> None:
    """All that nvidia-smi says of a card of the DGX profile."""
    first = _published("dgx-h100-8x80")[0]
    values = dict(first.attributes)
    assert values.pop("uuid") != ""
    domain = values.pop("nvlinkDomain")
    assert values.pop("nvlinkIsland") == domain
    assert values == {
        "type": "gpu",
        "index": 0,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "vendor": "nvidia",
        "cudaComputeCapability": Semver.parse("9.0.0"),
        "driverVersion": Semver.parse("580.126.20"),
        "driverVersionFull": "580.126.20",
        "cudaDriverVersion": Semver.parse("13.0.0"),
        "migCapable": True,
        "pcieSwitch": "0000:16:00.0",
        "resource.kubernetes.io/pciBusID": "0000:19:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:15",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert first.capacity["memory"].value == Quantity.parse("81559Mi")


def test_numa_nodes_that_the_kernel_does_not_know_are_left_out() -> None:
    """-1 is never published."""
    (device,) = _published("t4-1x")
    assert "resource.kubernetes.io/numaNode" not in device.attributes


def test_the_driver_name_is_the_domain_of_taints() -> None:
    """A renamed driver brings its own taint keys; attributes carry no domain at all."""
    gpus = (Gpu(uuid="GPU-1", lost=True),)
    pool = build_pool(
        Inventory(gpus=gpus), node_name="n", features=ALL_FEATURES, driver="gpu.example.com"
    )
    assert pool.driver == "gpu.example.com"
    assert pool.devices[0].taints[0].key == "gpu.example.com/lost"


def test_a_taint_of_one_card_changes_one_slice() -> None:
    """Health of a card is one write, whatever else the node holds."""
    inventory = build_inventory(load_hardware("dgx-h100-8x80"), node_name="n")
    healthy = build_pool(inventory, node_name="n", features=ALL_FEATURES)
    actual = plan_slices(healthy, []).creates
    name = healthy.devices[3].name
    taint = DeviceTaint(key="gpu.gpudra.io/xid-79", effect="NoSchedule")
    sick = build_pool(
        inventory,
        node_name="n",
        features=ALL_FEATURES,
        taints={name: (taint,), "gone": (taint,)},
    )
    plan = plan_slices(sick, actual)
    assert [one.spec.devices[0].name for one in plan.updates] == [name]
    assert not plan.creates
    assert not plan.deletes


def test_equal_hardware_makes_equal_pools() -> None:
    """Nothing random, no clock: two runs give the same slices."""
    one, other = (
        build_pool(
            build_inventory(load_hardware("mixed"), node_name="n"),
            node_name="n",
            features=ALL_FEATURES,
        )
        for _ in range(2)
    )
    assert one == other


def test_renumbered_cards_keep_names_and_places() -> None:
    """After a card came back under another index only the attribute index differs."""
    inventory = build_inventory(load_hardware("l4-4x"), node_name="n")
    renumbered = Inventory(
        gpus=tuple(replace(gpu, index=3 - (gpu.index or 0)) for gpu in inventory.gpus)
    )
    names = [one.name for one in allocatable_devices(inventory)]
    assert [one.name for one in allocatable_devices(renumbered)] == names
