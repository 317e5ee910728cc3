# SPDX-License-Identifier: Apache-2.0
"""CDI documents: shape, lowest version, names."""

import pytest

from gpudra.api.errors import InputError
from gpudra.driver.core import cdi
from gpudra.driver.core.edits import ContainerEdits, DeviceNode, Hook, Mount

ENV = ContainerEdits(env=(("A", "1"),))


def one_device(
    edits: ContainerEdits = ENV, common: ContainerEdits = cdi.NO_EDITS, class_: str = "claim"
) -> cdi.CdiDocument:
    """A document with one device."""
    return cdi.CdiDocument("gpu.gpudra.io", class_, (cdi.CdiDevice("a", edits),), common)


@pytest.mark.parametrize(
    ("document", "version"),
    [
        (one_device(), "0.3.0"),
        (one_device(ContainerEdits(mounts=(Mount(host_path="/a", container_path="/b"),))), "0.3.0"),
        (
            one_device(
                ContainerEdits(mounts=(Mount(host_path="/a", container_path="/b", type="bind"),))
            ),
            "0.4.0",
        ),
        (one_device(common=ContainerEdits(device_nodes=(DeviceNode(path="/a", host_path="/b"),))), "0.5.0"),
        (one_device(common=ContainerEdits(device_nodes=(DeviceNode(path="/a", host_path="/a"),))), "0.3.0"),
        (one_device(class_="claim.v2"), "0.6.0"),
        (one_device(ContainerEdits(additional_gids=(44,))), "0.7.0"),
    ],
)  # fmt: skip
def test_the_version_is_the_lowest_that_knows_the_content(
    document: cdi.CdiDocument, version: str
) -> None:
    """An older runtime refuses a newer version as a whole, so none is claimed without need."""
    assert cdi.to_json(document)["cdiVersion"] == version


def test_every_edit_is_written_as_the_specification_names_it() -> None:
    """Env, nodes, mounts, hooks and groups with their optional parts."""
    edits = ContainerEdits(
        env=(("A", "1"), ("B", "x=y")),
        device_nodes=(
            DeviceNode(
                path="/dev/a", host_path="/host/a", type="c", major=195, minor=0,
                file_mode=0o660, permissions="rw", uid=0, gid=44,
            ),
        ),
        mounts=(Mount(host_path="/lib/x", container_path="/usr/lib/x", options=("ro",), type="bind"),),
        hooks=(Hook(name="createContainer", path="/h", args=("h", "x"), env=("E=1",), timeout=5),),
        additional_gids=(44,),
    )  # fmt: skip
    (device,) = cdi.to_json(one_device(edits))["devices"]
    assert device["containerEdits"] == {
        "env": ["A=1", "B=x=y"],
        "deviceNodes": [
            {
                "path": "/dev/a", "hostPath": "/host/a", "type": "c", "major": 195, "minor": 0,
                "fileMode": 0o660, "permissions": "rw", "uid": 0, "gid": 44,
            }
        ],
        "mounts": [{"hostPath": "/lib/x", "containerPath": "/usr/lib/x", "options": ["ro"], "type": "bind"}],
        "hooks": [
            {"hookName": "createContainer", "path": "/h", "args": ["h", "x"], "env": ["E=1"], "timeout": 5}
        ],
        "additionalGids": [44],
    }  # fmt: skip


@pytest.mark.parametrize(
    "edits",
    [
        ContainerEdits(env=(("", "1"),)),
        ContainerEdits(env=(("A=B", "1"),)),
        ContainerEdits(device_nodes=(DeviceNode(path="dev/a"),)),
        ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", type="x"),)),
        ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", permissions="x"),)),
        ContainerEdits(mounts=(Mount(host_path="", container_path="/a"),)),
        ContainerEdits(hooks=(Hook(name="sometime", path="/a"),)),
    ],
)
def test_edits_that_runtimes_refuse_are_refused(edits: ContainerEdits) -> None:
    """A broken edit is an error here, not in a container's start."""
    with pytest.raises(InputError):
        cdi.to_json(one_device(edits))


def test_two_devices_of_one_name_are_refused() -> None:
    """A runtime would take one of them at will."""
    devices = (cdi.CdiDevice("a", ENV), cdi.CdiDevice("a", ENV))
    with pytest.raises(InputError, match="twice"):
        cdi.to_json(cdi.CdiDocument("v", "c", devices))
    with pytest.raises(InputError, match="at least one"):
        cdi.to_json(cdi.CdiDocument("v", "c", ()))


def test_a_driver_that_begins_with_a_digit_gets_a_valid_vendor() -> None:
    """Vendors begin with a letter, driver names need not."""
    assert cdi.vendor_of("gpu.gpudra.io") == "gpu.gpudra.io"
    assert cdi.device_id("3gpu.example.com", "a") == "k8s.3gpu.example.com/claim=a"


@pytest.mark.parametrize("driver", ["gpu.gpudra.io", "3gpu.example.com"])
def test_file_names_lead_back_to_the_claim(driver: str) -> None:
    """The uid can be read from the name; names of others are not ours."""
    name = cdi.file_name(driver, "3314d6f8-0000-4000-8000-000000000000")
    assert cdi.claim_uid_of(driver, name) == "3314d6f8-0000-4000-8000-000000000000"
    assert cdi.claim_uid_of("other.example.com", name) is None
    assert cdi.claim_uid_of(driver, name + ".bak") is None


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a.b", "-a", "a" * 65])
def test_a_uid_that_is_not_fit_for_a_file_name_is_refused(uid: str) -> None:
    """What comes over the socket becomes part of a path only if it is harmless."""
    with pytest.raises(InputError):
        cdi.check_uid(uid)
