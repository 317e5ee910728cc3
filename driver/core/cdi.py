# SPDX-License-Identifier: Apache-2.0
"""Container Device Interface: one document per prepared claim.

Pure: takes device names and edits, gives the JSON document; gpudra.kubelet_plugin.cdi_store puts
it into the folder that the container runtime reads.

Rules (CDI specification, ``SPEC.md`` and the version table of its Go package):

* an id is ``vendor/class=name``. Vendor and class begin with a letter, end with a letter or digit;
  a name begins and ends with a letter or digit and may hold ``_ - . :`` between;
* ``cdiVersion`` is the lowest one that knows everything the document uses, since an older runtime
  refuses a newer version as a whole;
* a device without any edit is refused by runtimes, and so is refused here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.driver.core.edits import ContainerEdits, DeviceNode, Hook, Mount

CLASS = "claim"
NO_EDITS = ContainerEdits()
# A vendor begins with a letter; a driver's name (a DNS subdomain) may begin with a digit.
DIGIT_PREFIX = "k8s."

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One injectable device; ``name`` is the last part of its id."""

    name: str
    edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class CdiDocument:
    """The content of one file: devices of one kind, and edits that go with any of them."""

    vendor: str
    class_: str
    devices: tuple[CdiDevice, ...]
    common: ContainerEdits = NO_EDITS

    @property
    def kind(self) -> str:
        """``vendor/class``."""
        return f"{self.vendor}/{self.class_}"


def vendor_of(driver: str) -> str:
    """The CDI vendor of a driver: its name, made to begin with a letter."""
    return driver if driver[:1].isalpha() else DIGIT_PREFIX + driver


def device_name(claim_uid: str, device: str, share_id: str | None = None) -> str:
    """The name of a claim's device: the uid keeps two claims of one card apart."""
    return f"{claim_uid}-{device}-{share_id}" if share_id else f"{claim_uid}-{device}"


def device_id(driver: str, name: str) -> str:
    """The full id, as the kubelet hands it to the runtime."""
    return f"{vendor_of(driver)}/{CLASS}={name}"


def file_name(driver: str, claim_uid: str) -> str:
    """The name of a claim's file in the CDI folder."""
    return f"{vendor_of(driver)}-{CLASS}_{claim_uid}.json"


def metadata_folder(driver: str, claim_uid: str) -> str:
    """The name of a claim's folder with device metadata. No driver has ``_`` in its name."""
    return f"{driver}_{claim_uid}"


def claim_uid_of(driver: str, name: str) -> str | None:
    """The claim's uid from the name of a file; None for a file that is not this driver's."""
    prefix, suffix = f"{vendor_of(driver)}-{CLASS}_", ".json"
    if not (name.startswith(prefix) and name.endswith(suffix)):
        return None
    uid = name[len(prefix) : -len(suffix)]
    return uid if _UID.fullmatch(uid) else None


def check_uid(uid: str) -> str:
    """A claim's uid that is safe in a file's name.

    Raises:
        InputError: anything but letters, digits and dashes, or longer than 64.
    """
    if not _UID.fullmatch(uid):
        raise InputError(f"{uid!r} is not the uid of a claim", field="uid")
    return uid


def check_kind(vendor: str, class_: str) -> None:
    """Checks the two halves of a kind.

    Raises:
        InputError: a character or a position that CDI does not allow.
    """
    if not _VENDOR.fullmatch(vendor):
        raise InputError(
            f"{vendor!r} is not a CDI vendor",
            field="kind",
            hint="begin with a letter, end with a letter or digit, use '_', '-', '.' between",
        )
    if not _VENDOR.fullmatch(class_):
        raise InputError(
            f"{class_!r} is not a CDI class",
            field="kind",
            hint="begin with a letter, end with a letter or digit, use '_', '-', '.' between",
        )


def check_device_name(name: str) -> None:
    """Checks the name of one device.

    Raises:
        InputError: a character or a position that CDI does not allow.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a CDI device name",
            field="devices.name",
            hint="begin and end with a letter or digit, use '_', '-', '.', ':' between",
        )


def version_of(document: CdiDocument) -> str:
    """The lowest ``cdiVersion`` that knows everything the document uses."""
    edits = [document.common, *(device.edits for device in document.devices)]
    nodes = [node for one in edits for node in one.device_nodes]
    mounts = [mount for one in edits for mount in one.mounts]
    needs = {
        "0.7.0": any(one.additional_gids for one in edits),
        "0.6.0": "." in document.class_,
        "0.5.0": any(not device.name[:1].isalpha() for device in document.devices)
        or any(node.host_path and node.host_path != node.path for node in nodes),
        "0.4.0": any(mount.type for mount in mounts),
    }
    return next((version for version, needed in needs.items() if needed), "0.3.0")


def to_json(document: CdiDocument) -> dict[str, Any]:
    """The document as the runtime reads it.

    Raises:
        InputError: a name that CDI does not allow, two devices of one name, a device without
            edits, or an edit without its required parts. Nothing was written.
    """
    check_kind(document.vendor, document.class_)
    if not document.devices:
        raise InputError("a CDI document needs at least one device", field="devices")
    seen: set[str] = set()
    for device in document.devices:
        check_device_name(device.name)
        if device.name in seen:
            raise InputError(f"{device.name!r} is there twice", field="devices.name")
        seen.add(device.name)
        if device.edits == NO_EDITS:
            raise InputError(
                f"device {device.name!r} has no edits, runtimes refuse that",
                field="devices.containerEdits",
                hint="set at least one variable",
            )
    result: dict[str, Any] = {"cdiVersion": version_of(document), "kind": document.kind}
    result["devices"] = [
        {"name": device.name, "containerEdits": _edits(device.edits)} for device in document.devices
    ]
    if document.common != NO_EDITS:
        result["containerEdits"] = _edits(document.common)
    return result


def _edits(edits: ContainerEdits) -> dict[str, Any]:
    found = {
        "env": [_env(name, value) for name, value in edits.env],
        "deviceNodes": [_node(node) for node in edits.device_nodes],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [_hook(hook) for hook in edits.hooks],
        "additionalGids": list(edits.additional_gids),
    }
    return {key: value for key, value in found.items() if value}


def _env(name: str, value: str) -> str:
    if not name or "=" in name or "\0" in name + value:
        raise InputError(f"{name!r} is not the name of a variable", field="containerEdits.env")
    return f"{name}={value}"


def _node(node: DeviceNode) -> dict[str, Any]:
    if not node.path.startswith("/"):
        raise InputError(f"{node.path!r} is not absolute", field="containerEdits.deviceNodes.path")
    if node.type not in {"", "b", "c", "u", "p"} or set(node.permissions) - set("rwm"):
        raise InputError(
            f"type {node.type!r} or permissions {node.permissions!r} of {node.path} unknown",
            field="containerEdits.deviceNodes",
        )
    found: dict[str, Any] = {"path": node.path}
    if node.host_path and node.host_path != node.path:
        found["hostPath"] = node.host_path
    optional: Mapping[str, Any] = {
        "type": node.type or None,
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.file_mode,
        "permissions": node.permissions or None,
        "uid": node.uid,
        "gid": node.gid,
    }
    return found | {key: value for key, value in optional.items() if value is not None}


def _mount(mount: Mount) -> dict[str, Any]:
    if not mount.host_path or not mount.container_path.startswith("/"):
        raise InputError(
            f"{mount.host_path!r} on {mount.container_path!r}: both paths are needed",
            field="containerEdits.mounts",
        )
    found: dict[str, Any] = {"hostPath": mount.host_path, "containerPath": mount.container_path}
    if mount.options:
        found["options"] = list(mount.options)
    if mount.type:
        found["type"] = mount.type
    return found


_HOOKS = frozenset(
    ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
)


def _hook(hook: Hook) -> dict[str, Any]:
    if hook.name not in _HOOKS or not hook.path:
        raise InputError(f"{hook.name!r} is not an OCI hook", field="containerEdits.hooks")
    found: dict[str, Any] = {"hookName": hook.name, "path": hook.path}
    if hook.args:
        found["args"] = list(hook.args)
    if hook.env:
        found["env"] = list(hook.env)
    if hook.timeout is not None:
        found["timeout"] = hook.timeout
    return found


def device_names(document: Mapping[str, Any]) -> Iterable[str]:
    """The device names of a document read back from disk, as far as it can be read."""
    devices = document.get("devices")
    for device in devices if isinstance(devices, list) else ():
        name = device.get("name") if isinstance(device, Mapping) else None
        if isinstance(name, str):
            yield name
