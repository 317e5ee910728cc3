# SPDX-License-Identifier: Apache-2.0
"""Device nodes of NVIDIA cards on this host, as container edits.

Paths are those of the driver: ``/dev/nvidia<minor>`` and the control nodes; MIG adds two capability
nodes, whose minor numbers stand in ``/proc/driver/nvidia/capabilities`` (NVIDIA MIG user guide,
"Device nodes and capabilities").
"""

from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import HardwareError
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.driver.core.inventory import MigInstance

# Needed by every container with a card; nvidia-modeset only where it exists.
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_CAPABILITIES = "proc/driver/nvidia/capabilities"
_MONITOR = "mig/monitor"


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Where the driver's files lie.

    Attributes:
        host_root: the host's root as this process sees it: ``/``, or a mount in a container.
        dev_root: the host path below which ``dev/`` lies: ``/``, or a driver container's root.
    """

    host_root: Path = Path("/")
    dev_root: str = "/"

    def common(self) -> ContainerEdits:
        """The control nodes that exist now."""
        return ContainerEdits(
            device_nodes=tuple(
                self._node(name) for name in CONTROL_NODES if self._seen(name).exists()
            )
        )

    def gpu(self, minor: int) -> ContainerEdits:
        """The card's own node.

        Raises:
            HardwareError: it does not exist yet.
        """
        return ContainerEdits(device_nodes=(self._existing(f"nvidia{minor}"),))

    def missing(self, minor: int | None) -> tuple[str, ...]:
        """Nodes without which a container could not use the card, and that are not there."""
        names = () if minor is None else (f"nvidia{minor}",)
        return tuple(
            f"/dev/{name}" for name in (*names, "nvidiactl") if not self._seen(name).exists()
        )

    def mig(self, minor: int, instance: MigInstance) -> ContainerEdits:
        """The parent card's node and the instance's two capability nodes.

        Raises:
            HardwareError: a node or its number cannot be found.
        """
        base = f"gpu{minor}/mig/gi{instance.gpu_instance_id}"
        capabilities = (f"{base}/access", f"{base}/ci{instance.compute_instance_id}/access")
        nodes = [self._existing(f"nvidia{minor}")]
        nodes += [
            self._existing(f"nvidia-caps/nvidia-cap{self._capability_minor(path)}")
            for path in capabilities
        ]
        return ContainerEdits(device_nodes=tuple(nodes))

    def mig_monitor(self) -> ContainerEdits:
        """The node that lets a program see the instances of all cards; nothing where there is none.

        Its sibling ``mig/config`` lets a program make and destroy instances: nobody gets that.
        """
        if not (self.host_root / _CAPABILITIES / _MONITOR).exists():
            return ContainerEdits()
        name = f"nvidia-caps/nvidia-cap{self._capability_minor(_MONITOR)}"
        if not self._seen(name).exists():
            return ContainerEdits()
        return ContainerEdits(device_nodes=(self._node(name),))

    def _capability_minor(self, path: str) -> int:
        file = self.host_root / _CAPABILITIES / path
        try:
            lines = file.read_text(encoding="ascii").splitlines()
        except OSError as error:
            raise HardwareError(
                f"the driver shows no capability file ({error.strerror})", obj=str(file)
            ) from error
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "DeviceFileMinor":
                return int(value)
        raise HardwareError("the capability file names no DeviceFileMinor", obj=str(file))

    def _seen(self, name: str) -> Path:
        return self.host_root / self.dev_root.strip("/") / "dev" / name

    def _existing(self, name: str) -> DeviceNode:
        if not self._seen(name).exists():
            raise HardwareError(
                "the device node does not exist",
                obj=f"/dev/{name}",
                hint="nvidia-modprobe or nvidia-smi on the node makes it",
            )
        return self._node(name)

    def _node(self, name: str) -> DeviceNode:
        host = str(Path(self.dev_root) / "dev" / name)
        return DeviceNode(path=f"/dev/{name}", host_path="" if host == f"/dev/{name}" else host)
