# SPDX-License-Identifier: Apache-2.0
"""Devices and who holds them, from slices and claims alone."""

from typing import Any

from gpudra.api.resource_v1 import ResourceClaim, ResourceSlice
from gpudra.controller.ctl.devices import device_views, view_as_data

DRIVER = "gpu.gpudra.io"


def slice_of(
    pool: str, index: int, *names: str, generation: int = 1, **device: Any
) -> ResourceSlice:
    """A slice with devices of these names."""
    return ResourceSlice.from_dict(
        {
            "metadata": {"name": f"{pool}-{index}"},
            "spec": {
                "driver": DRIVER,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
                "nodeName": pool,
                "devices": [{"name": name, **device} for name in names],
            },
        }
    )


def claim_of(
    name: str, *devices: str, pool: str = "n1", pods: tuple[str, ...] = (), **more: Any
) -> ResourceClaim:
    """A claim that was given these devices."""
    results = [
        {"request": "main", "driver": DRIVER, "pool": pool, "device": device, **more}
        for device in devices
    ]
    return ResourceClaim.from_dict(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": []}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
            },
        }
    )


def test_devices_keep_their_published_order() -> None:
    """Pools by name, devices inside a pool as the scheduler meets them."""
    slices = [slice_of("n2", 0, "a"), slice_of("n1", 1, "c"), slice_of("n1", 0, "z", "b")]
    assert [(view.pool, view.name) for view in device_views(slices, [], DRIVER)] == [
        ("n1", "z"),
        ("n1", "b"),
        ("n1", "c"),
        ("n2", "a"),
    ]


def test_a_device_shows_its_holder_and_the_pods() -> None:
    """The claim, and in brackets who may use it now."""
    (view,) = device_views([slice_of("n1", 0, "a")], [claim_of("c", "a", pods=("p", "q"))], DRIVER)
    assert [str(holder) for holder in view.holders] == ["default/c (p, q)"]


def test_an_administrator_is_shown_beside_the_owner() -> None:
    """Admin access does not take a device, and is marked."""
    claims = [claim_of("own", "a"), claim_of("watch", "a", adminAccess=True)]
    (view,) = device_views([slice_of("n1", 0, "a")], claims, DRIVER)
    assert [str(holder) for holder in view.holders] == ["default/own", "default/watch [admin]"]


def test_the_same_name_in_another_pool_or_driver_is_another_device() -> None:
    """Holders are looked up by driver, pool and device together."""
    slices = [slice_of("n1", 0, "a"), slice_of("n2", 0, "a")]
    claims = [claim_of("c", "a", pool="n2"), claim_of("d", "a", driver="other.example")]
    assert [len(view.holders) for view in device_views(slices, claims, DRIVER)] == [0, 1]


def test_only_the_newest_generation_counts() -> None:
    """Devices of an older generation are not shown: the scheduler does not see them either."""
    slices = [slice_of("n1", 0, "old"), slice_of("n1", 1, "new", generation=2)]
    assert [view.name for view in device_views(slices, [], DRIVER)] == ["new"]


def test_a_held_device_that_is_not_published_is_shown() -> None:
    """What a claim holds never disappears from the list."""
    views = device_views([slice_of("n1", 0, "a")], [claim_of("c", "gone")], DRIVER)
    assert [(view.name, view.device is None) for view in views] == [("a", False), ("gone", True)]
    assert view_as_data(views[1])["published"] is False


def test_attributes_are_found_with_and_without_domain() -> None:
    """``productName`` and ``gpu.gpudra.io/productName`` are one attribute."""
    for key in ("productName", f"{DRIVER}/productName"):
        (view,) = device_views(
            [slice_of("n1", 0, "a", attributes={key: {"string": "H100"}})], [], DRIVER
        )
        assert view.attribute("productName") == "H100"
        assert view.attribute("other") is None


def test_data_for_programs_has_everything() -> None:
    """Attributes, capacity, taints and holders in plain types."""
    slices = [
        slice_of(
            "n1",
            0,
            "a",
            attributes={"index": {"int": 0}},
            capacity={"memory": {"value": "80Gi"}},
            taints=[{"key": "gpu.gpudra.io/lost", "effect": "NoExecute"}],
        )
    ]
    (view,) = device_views(slices, [claim_of("c", "a")], DRIVER)
    assert view_as_data(view) == {
        "driver": DRIVER,
        "pool": "n1",
        "device": "a",
        "published": True,
        "attributes": {"index": {"int": 0}},
        "capacity": {"memory": {"value": "80Gi"}},
        "taints": [{"key": "gpu.gpudra.io/lost", "effect": "NoExecute"}],
        "heldBy": [
            {"claim": "default/c", "request": "main", "adminAccess": False, "consumers": []}
        ],
    }
