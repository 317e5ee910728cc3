# SPDX-License-Identifier: Apache-2.0
"""What the node agent asks of hardware. One backend per vendor or kind; all calls block.

A backend is a DeviceLib. What not every backend can do is grouped: ``partitions``, ``tuning``,
``health`` and ``usage`` are None where a backend has no such thing, so the type checker makes the
caller think of it. The agent calls from worker threads; calls for different cards may run at the
same time, calls for one card never do (the agent holds a lock per card). ``HealthLib.wait`` runs
beside everything else.

Cards are named by ``Gpu.key``. Every method raises HardwareError where the library fails
(retryable), DeviceGoneError where that card does not answer, and InputError for a key that the
backend never reported.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpudra.api.errors import HardwareError
from gpudra.driver.core.edits import ContainerEdits
from gpudra.driver.core.health import HealthEvent, HealthKind
from gpudra.driver.core.inventory import Inventory, MigInstance

__all__ = (
    "ComputeMode",
    "DeviceLib",
    "GpuProcess",
    "GpuUsage",
    "HealthEvent",
    "HealthKind",
    "HealthLib",
    "PartitionLib",
    "Readiness",
    "RefusedError",
    "TimeSlice",
    "TuningLib",
    "UsageLib",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the node's driver can be used now.

    Attributes:
        ready: publish only when true.
        reason: CamelCase, for the node condition: ``DriverReady``, ``DriverMissing``, …
        message: for people.
        driver_root: folder under which the driver's files lie, ``/`` or ``/run/nvidia/driver``.
    """

    ready: bool
    reason: str
    message: str = ""
    driver_root: str = "/"


class ComputeMode(StrEnum):
    """Who may make contexts on a card (``nvmlComputeMode_t``)."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusiveProcess"
    PROHIBITED = "prohibited"


class TimeSlice(StrEnum):
    """Length of a time slice (``nvidia-smi compute-policy --set-timeslice`` 0 to 3)."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a card; None where the driver does not tell.

    Attributes:
        pid: on the host.
        memory_bytes: what it uses of the card.
        gpu_instance_id: of the MIG instance that it runs on.
        compute_percent: share of the card's time since the last look; never told under MIG.
    """

    pid: int
    memory_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """How busy a card is now; each reading is optional."""

    memory_used_bytes: int | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None
    power_milliwatts: int | None = None
    temperature_celsius: int | None = None


class RefusedError(HardwareError):
    """An instance was refused: nothing was made, so what lies at its place is somebody else's."""


class PartitionLib(Protocol):
    """MIG."""

    def mig_mode(self, gpu: str) -> bool:
        """Whether MIG is on now."""
        ...

    def set_mig_mode(self, gpu: str, *, enabled: bool) -> bool:
        """Switches MIG. False: the switch is pending, until the card is reset.

        Ampere cards switch by a reset, which the driver does by itself if nobody uses the card.
        """
        ...

    def mig_instances(self, gpu: str) -> tuple[MigInstance, ...]:
        """What exists now, whoever made it."""
        ...

    def create_mig_instance(self, gpu: str, profile_id: int, start: int) -> MigInstance:
        """A GPU instance at exactly this place, with one compute instance that fills it.

        Raises:
            RefusedError: the place is taken or no engines are left.
            HardwareError: something else; there may be an instance or half of one.
        """
        ...

    def destroy_mig_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """Takes the instance away; nothing happens if it is gone already.

        Raises:
            HardwareError: somebody uses it.
        """
        ...

    def mig_edits(self, gpu: str, instance: MigInstance) -> ContainerEdits:
        """What a container needs for this instance, the parent card's nodes included."""
        ...

    def monitor_edits(self, gpu: str) -> ContainerEdits:
        """What a container that watches the card needs to see its instances, beside ``gpu_edits``."""
        ...


class TuningLib(Protocol):
    """Settings that sharing needs."""

    def compute_mode(self, gpu: str) -> ComputeMode:
        """The mode now."""
        ...

    def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Sets it."""
        ...

    def set_time_slice(self, gpus: Sequence[str], length: TimeSlice) -> None:
        """Sets the length of a time slice on these cards."""
        ...


class HealthLib(Protocol):
    """Health events."""

    def wait(self, timeout_seconds: float) -> tuple[HealthEvent, ...]:
        """Events since the last call, in order; empty after ``timeout_seconds`` without any.

        Returns early with nothing once the backend is closed.
        """
        ...


class UsageLib(Protocol):
    """Who uses a card, and how much."""

    def usage(self, gpu: str) -> GpuUsage:
        """Readings now."""
        ...

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Compute processes on the card, ascending by pid."""
        ...


class DeviceLib(Protocol):
    """A backend."""

    @property
    def name(self) -> str:
        """``nvml``, ``simulated``, ``declared``, …: for logs."""
        ...

    @property
    def partitions(self) -> PartitionLib | None:
        """MIG, where the backend has it."""
        ...

    @property
    def tuning(self) -> TuningLib | None:
        """Compute mode and time slices, where the backend has them."""
        ...

    @property
    def health(self) -> HealthLib | None:
        """Events, where the backend has them."""
        ...

    @property
    def usage(self) -> UsageLib | None:
        """Usage, where the backend has it."""
        ...

    def readiness(self) -> Readiness:
        """Whether the driver is there and passes its self-test. Never raises."""
        ...

    def discover(self) -> Inventory:
        """Everything, read anew. One bad reading or card never costs another.

        Raises:
            HardwareError: the library as a whole does not answer: nothing is known, which is not
                the same as no cards.
        """
        ...

    def fingerprint(self) -> Hashable:
        """A value that differs from the last one when ``discover`` is worth calling again.

        Cheap: asked for every two seconds. Covers which cards there are, whether they answer, MIG
        instances and what the driver wants done; not every reading.

        Raises:
            HardwareError: as for ``discover``.
        """
        ...

    def common_edits(self) -> ContainerEdits:
        """What every container with a device of this backend needs (control nodes, libraries)."""
        ...

    def gpu_edits(self, gpu: str) -> ContainerEdits:
        """What a container needs for this whole card, beside ``common_edits``."""
        ...

    def close(self) -> None:
        """Lets go of the library; ``health.wait`` returns. May be called twice."""
        ...
