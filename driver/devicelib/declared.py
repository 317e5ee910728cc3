# SPDX-License-Identifier: Apache-2.0
"""Cards that an admin declares in a DeviceInventory file: any vendor, no library.

The file is looked at every two seconds and read again when it changed. While a changed file is
wrong, what was declared before stays in force, and a problem says file, line and field. A card whose
device files are not there is published all the same, with a taint that names the first of them:
a claim that has it already must not lose it from sight.
"""

import hashlib
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path

from gpudra.api.attributes import AttributeValue
from gpudra.api.deviceinventory import (
    KIND,
    AttributeSpec,
    DeviceInventory,
    DeviceSpec,
    EditsSpec,
    VersionValue,
)
from gpudra.api.errors import DeviceGoneError, InputError
from gpudra.api.yamlfile import Document
from gpudra.driver.core.edits import ContainerEdits, DeviceNode, Mount
from gpudra.driver.core.inventory import Gpu, HealthReadings, Inventory, PciInfo, ReadingProblem
from gpudra.driver.devicelib.files import read_documents
from gpudra.driver.devicelib.pci import PciTree
from gpudra.driver.devicelib.protocol import Readiness

Stamp = tuple[int, int, int]


class DeclaredLib:
    """DeviceLib on a file.

    Args:
        path: of the file.
        host_root: the host's root as this process sees it.
        node_name: keeps the link domains of two nodes apart.

    Raises:
        InputError: the file is missing or wrong, with line and field.
    """

    name = "declared"
    partitions = None
    tuning = None
    health = None
    usage = None

    def __init__(self, path: Path, *, host_root: Path = Path("/"), node_name: str = "") -> None:
        self._path = path
        self._host = host_root
        self._node_name = node_name
        self._tree = PciTree(host_root)
        self._lock = threading.Lock()
        self._stamp = self._stat()
        self._declared = load_inventory(path)
        self._error = ""

    def readiness(self) -> Readiness:
        """Whether all files that the driver makes are there."""
        declared = self._current()
        missing = [path for path in declared.spec.driver.ready_files if not self._exists(path)]
        if missing:
            text = f"{', '.join(missing)} not there"
            return Readiness(ready=False, reason="DriverMissing", message=text)
        count = len(declared.spec.devices)
        return Readiness(ready=True, reason="DriverReady", message=f"{count} declared GPUs")

    def discover(self) -> Inventory:
        """The cards as declared now; a file that is wrong now is a problem beside them."""
        spec = self._current().spec
        gpus = [
            self._gpu(index, device, spec.vendor, spec.driver.version)
            for index, device in enumerate(spec.devices)
        ]
        problems: tuple[ReadingProblem, ...] = ()
        if self._error:
            problems = (ReadingProblem(gpu="", reading="declaration", message=self._error),)
        return Inventory(gpus=tuple(gpus), problems=problems)

    def fingerprint(self) -> Hashable:
        """See DeviceLib: the file, and which of the files that it names exist."""
        spec = self._current().spec
        nodes = tuple(self._missing(device) for device in spec.devices)
        ready = tuple(self._exists(path) for path in spec.driver.ready_files)
        return (self._stamp, self._error, nodes, ready)

    def common_edits(self) -> ContainerEdits:
        """What every container with one of the cards needs."""
        return _edits(self._current().spec.common)

    def gpu_edits(self, gpu: str) -> ContainerEdits:
        """What a container needs for this card."""
        for device in self._current().spec.devices:
            if gpu == (device.uuid or device.name):
                missing = self._missing(device)
                if missing:
                    raise DeviceGoneError(f"{', '.join(missing)} is not there", obj=f"GPU {gpu}")
                return _edits(device)
        raise InputError("is not declared", obj=f"GPU {gpu}")

    def close(self) -> None:
        """Nothing is held."""

    # --- the file -------------------------------------------------------------------------------

    def _current(self) -> DeviceInventory:
        """The last declaration that was right."""
        with self._lock:
            stamp = self._stat()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._declared, self._error = load_inventory(self._path), ""
                except InputError as error:
                    self._error = str(error)
            return self._declared

    def _stat(self) -> Stamp:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        # A ConfigMap's file is a link that is moved to another folder: the inode tells.
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    # --- cards ----------------------------------------------------------------------------------

    def _gpu(self, index: int, device: DeviceSpec, vendor: str, driver: str | None) -> Gpu:
        address = device.pci.bus_id if device.pci else None
        node = self._tree.node(address) if address else None
        numa = device.numa_node
        if numa is None and node is not None:
            numa = node.numa_node
        return Gpu(
            uuid=device.uuid,
            declared_name=device.name,
            vendor=vendor,
            index=index,
            product_name=device.product_name,
            architecture=device.architecture,
            driver_version=driver,
            memory_bytes=device.memory.as_integer() if device.memory else None,
            pci=PciInfo(bus_id=address, bridges=node.bridges, root=node.root)
            if address and node
            else None,
            numa_node=numa,
            health=HealthReadings(missing_files=self._missing(device)),
            attributes=_attributes(device, self._node_name),
            capacity=dict(device.capacity),
        )

    def _missing(self, device: EditsSpec) -> tuple[str, ...]:
        paths = (node.host_path or node.path for node in device.device_nodes)
        return tuple(path for path in paths if not self._exists(path))

    def _exists(self, path: str) -> bool:
        return (self._host / path.lstrip("/")).exists()


def load_inventory(path: Path) -> DeviceInventory:
    """The declaration.

    Raises:
        InputError: the file is missing or wrong; with file, line and field.
    """
    documents = read_documents(path)
    if len(documents) != 1:
        raise InputError(f"holds {len(documents)} documents, not one {KIND}", file=str(path))
    found = documents[0].validate(DeviceInventory)
    _check_unique(documents[0], found)
    return found


def _check_unique(document: Document, found: DeviceInventory) -> None:
    """Names, uuids and addresses tell cards apart; one device file is of one card."""
    seen: dict[tuple[str, str], int] = {}
    for index, device in enumerate(found.spec.devices):
        path = ("spec", "devices", index)
        nodes = [node.host_path or node.path for node in device.device_nodes]
        marks: list[tuple[str, str | None, tuple[str | int, ...]]] = [
            ("name", device.name, (*path, "name")),
            ("uuid", device.uuid, (*path, "uuid")),
            ("pci.busId", device.pci.bus_id if device.pci else None, (*path, "pci", "busId")),
            *(("device file", node, (*path, "deviceNodes")) for node in nodes),
        ]
        for kind, value, where in marks:
            if value is None:
                continue
            other = seen.setdefault((kind, value), index)
            if other != index:
                name = found.spec.devices[other].name
                raise document.error(f"{kind} {value} is that of device {name} already", where)


def _attributes(device: DeviceSpec, node_name: str) -> dict[str, AttributeValue]:
    """Those that were declared, and the set of cards that it is linked with.

    Names of declared cards repeat from node to node, so the name of the set is salted.
    """
    found = {name: _value(given) for name, given in device.attributes.items()}
    if device.link_domain is not None:
        salted = f"{node_name}\0{device.link_domain}"
        name = hashlib.sha256(salted.encode()).hexdigest()[:16]
        found |= {"nvlinkDomain": name, "nvlinkIsland": name}
    return found


def _value(given: AttributeSpec) -> AttributeValue:
    return given.version if isinstance(given, VersionValue) else given


def _edits(spec: EditsSpec) -> ContainerEdits:
    env: Mapping[str, str] = spec.env
    return ContainerEdits(
        env=tuple(env.items()),
        device_nodes=tuple(
            DeviceNode(path=node.path, host_path=node.host_path or "", permissions=node.permissions)
            for node in spec.device_nodes
        ),
        mounts=tuple(
            Mount(
                host_path=mount.host_path,
                container_path=mount.container_path or mount.host_path,
                options=mount.options,
            )
            for mount in spec.mounts
        ),
    )
