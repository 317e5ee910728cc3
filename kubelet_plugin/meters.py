# SPDX-License-Identifier: Apache-2.0
"""Turns what the agent's parts tell into metrics; the composition root hands the methods out."""

from collections import Counter
from collections.abc import Mapping, Sized

from gpudra.api.resource_v1 import Device
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.health import HealthState
from gpudra.driver.core.resourceslices import DesiredPool
from gpudra.driver.core.sharing import Backend
from gpudra.driver.kube.resources import Resource
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import Metrics

PUBLISHED, LEFT_OUT = "published", "left_out"


class Meters:
    """What is not about one claim; for claims see report.

    Args:
        metrics: of this process.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def pool(self, pool: DesiredPool, devices: Mapping[str, AllocatableDevice]) -> None:
        """Devices that are published, and forms of cards that are not: by policy, limits, health."""
        published = {device.name: _kind(device) for device in pool.devices}
        out = [one.kind.value for name, one in devices.items() if name not in published]
        counted = ((PUBLISHED, Counter(published.values())), (LEFT_OUT, Counter(out)))
        self._metrics.clear(m.DEVICES)
        for state, counts in counted:
            for kind, count in counts.items():
                self._metrics.set(m.DEVICES, count, kind=kind, state=state)

    def health(self, state: HealthState) -> None:
        """Causes of bad health."""
        causes = Counter(cause.key for gpu in state.cards for cause in state.causes(gpu))
        self._metrics.clear(m.UNHEALTHY_GPUS)
        for cause, count in causes.items():
            self._metrics.set(m.UNHEALTHY_GPUS, count, cause=cause)

    def registered(self, registered: bool) -> None:
        """Whether the kubelet has accepted the plugin."""
        self._metrics.set(m.KUBELET_REGISTERED, 1 if registered else 0)

    def device_call(self, seconds: float, answered: bool) -> None:
        """One call into NVML."""
        outcome = "ok" if answered else "error"
        self._metrics.observe(m.DEVICE_CALL_SECONDS, seconds, outcome=outcome)

    def checkpoint_written(self, seconds: float) -> None:
        """One write of the checkpoint."""
        self._metrics.observe(m.CHECKPOINT_SECONDS, seconds)

    def backend(self, backend: Backend, usable: bool) -> None:
        """Whether claims can have an isolation."""
        self._metrics.set(m.BACKEND_USABLE, 1 if usable else 0, backend=backend.value)

    def incident(self, restored: bool) -> None:
        """A daemon of an isolation ended or hung."""
        outcome = "restored" if restored else "lost"
        self._metrics.inc(m.ISOLATION_INCIDENTS, outcome=outcome)

    def took_back(self, kind: str, count: int) -> None:
        """Something was cleaned up without being asked for; kinds are those of GC_ACTIONS."""
        self._metrics.inc(m.GC_ACTIONS, count, kind=kind)

    def reflector_failed(self, resource: Resource, reason: str) -> None:
        """A list or watch failed."""
        self._metrics.inc(m.REFLECTOR_ERRORS, resource=resource.plural, reason=reason)

    def reflector_holds(self, resource: Resource, objects: Sized) -> None:
        """What a reflector has in memory."""
        self._metrics.set(m.REFLECTOR_OBJECTS, len(objects), resource=resource.plural)


def _kind(device: Device) -> str:
    """Of a published device; labels are a closed set, so what is odd is told as a whole card."""
    kind = device.attributes.get("type")
    return str(kind) if kind in set(DeviceKind) else DeviceKind.WHOLE.value
