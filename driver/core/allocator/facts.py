# SPDX-License-Identifier: Apache-2.0
"""What a device is to a plan: facts that decide, and verdicts on them.

Most facts of a device decide nothing for a given claim. Those that do are gathered into one
number per device, so that forty thousand devices become a few hundred kinds, and every selector
runs once per kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device, DeviceTaint
from gpudra.driver.core.allocator.consumable_capacity import Fit, Misfit, capacity_fit
from gpudra.driver.core.allocator.reads import Reads
from gpudra.driver.core.allocator.requests import Alternative, SelectorPlan
from gpudra.driver.core.allocator.taints import blocking_taint
from gpudra.driver.core.cel import CelDevice, CelEvaluationError

_TRUE, _FALSE = ("bool", True), ("bool", False)  # so that true and 1 stay two facts
_NO_TAINTS: tuple[DeviceTaint, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one kind of device is to one alternative.

    Attributes:
        fit: what it would take of the device; None if the device is not selected.
        failed: the selector that said no.
        misfit: the capacity that it lacks.
        error: why a selector could not be evaluated, naming it; the device makes the attempt end.
        taint: the taint that keeps the request off although the device is selected.
    """

    fit: Fit | None = None
    failed: SelectorPlan | None = None
    misfit: Misfit | None = None
    error: str = ""
    taint: DeviceTaint | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A device that stands for its kind."""

    driver: str
    device: Device
    taints: tuple[DeviceTaint, ...]


Projection = Callable[[Sequence[Device]], list[Any]]


class FactSpace:
    """Numbers the kinds of devices that a set of reads can tell apart."""

    def __init__(self, reads: Reads, capacity_names: frozenset[str]) -> None:
        self._reads = reads
        self._capacity_names = capacity_names
        self._numbers: dict[str, dict[Any, int]] = {}
        self._projections: dict[str, Projection] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        self.samples: list[Sample] = []

    def shape(self, content: tuple[Any, ...]) -> int:
        """A number for everything of a pool that a question can see."""
        return self._shapes.setdefault(content, len(self._shapes))

    def number(
        self,
        driver: str,
        devices: Sequence[Device],
        extra_taints: Callable[[str], tuple[DeviceTaint, ...]] | None,
    ) -> tuple[int, ...]:
        """The kind of each device.

        Args:
            driver: publisher of all of them.
            devices: of one pool.
            extra_taints: taints that rules add to a device, by its name.
        """
        project = self._projections.get(driver)
        if project is None:
            project = self._projections[driver] = self._projection(driver)
            self._numbers[driver] = {}
        numbers, samples, kinds = self._numbers[driver], self.samples, []
        for device, own in zip(devices, project(devices), strict=True):
            key = own
            taints = device.taints
            if extra_taints is not None:
                taints = (*taints, *extra_taints(device.name))
            if taints or device.allow_multiple_allocations:
                key = (own, taint_key(taints), _sharing_key(device))
            kind = numbers.get(key)
            if kind is None:
                kind = numbers[key] = len(samples)
                samples.append(Sample(driver, device, taints))
            kinds.append(kind)
        return tuple(kinds)

    def _projection(self, driver: str) -> Projection:
        """What of devices decides, as one hashable value each."""
        if self._reads.everything:
            return lambda devices: [_everything(device) for device in devices]
        attributes = [_names(name, driver) for name in sorted(self._reads.attributes)]
        capacity = [_names(name, driver) for name in sorted(self._reads.capacity)]
        for name in sorted(self._capacity_names):
            domain, _, identifier = name.rpartition("/")
            capacity.append(_names((domain or driver, identifier), driver))

        def project(devices: Sequence[Device]) -> list[Any]:
            keys: list[Any] = []
            for device in devices:
                own = device.attributes
                values: list[Any] = []
                for full, short in attributes:
                    value = own.get(short) if short and full not in own else own.get(full)
                    kind = value.__class__
                    plain = kind is str or kind is int or value is None
                    values.append(value if plain else _typed(value))
                if capacity:
                    values += _capacities(device, capacity)
                keys.append(tuple(values))
            return keys

        return project


def _names(name: tuple[str, str], driver: str) -> tuple[str, str]:
    """The full name, and the short one if the driver's own domain makes it the same."""
    domain, identifier = name
    return f"{domain}/{identifier}", identifier if domain == driver else ""


def _typed(value: Any) -> Any:
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    if isinstance(value, tuple) and value and isinstance(value[0], bool):
        return ("bools", value)
    return value


def _capacities(device: Device, names: Sequence[tuple[str, str]]) -> list[Any]:
    values: list[Any] = []
    for full, short in names:
        capacity = device.capacity.get(full)
        if capacity is None and short:
            capacity = device.capacity.get(short)
        values.append(None if capacity is None else capacity.value.nanos)
    return values


def _everything(device: Device) -> tuple[Any, ...]:
    attributes = tuple(
        (name, _typed(value) if not hasattr(value, "raw") else repr(value))
        for name, value in sorted(device.attributes.items())
    )
    return attributes, _sharing_key(device)


def _sharing_key(device: Device) -> tuple[Any, ...]:
    return bool(device.allow_multiple_allocations), tuple(
        (name, capacity.value.nanos, _policy_key(capacity.request_policy))
        for name, capacity in device.capacity.items()
    )


def _policy_key(policy: Any) -> Any:
    if policy is None:
        return None
    span = policy.valid_range
    return (
        _nanos(policy.default),
        tuple(value.nanos for value in policy.valid_values),
        None if span is None else (_nanos(span.min), _nanos(span.max), _nanos(span.step)),
    )


def _nanos(quantity: Quantity | None) -> int | None:
    return None if quantity is None else quantity.nanos


def taint_key(taints: Sequence[DeviceTaint]) -> tuple[Any, ...]:
    """What of taints decides."""
    return tuple((taint.key, taint.value, taint.effect) for taint in taints)


def judge(alternative: Alternative, sample: Sample) -> Verdict:
    """Whether an alternative selects a device, everything about other claims left aside.

    The order is upstream's: selectors of the class, of the request, capacity, taints.
    """
    cel_device = CelDevice.from_device(sample.driver, sample.device)
    for selector in alternative.selectors:
        try:
            if not selector.compiled.matches(cel_device):
                return Verdict(failed=selector)
        except CelEvaluationError as error:
            return Verdict(error=f"{selector.origin}: {selector.compiled.expression}: {error}")
    fit = capacity_fit(sample.device, sample.driver, alternative.capacity)
    if isinstance(fit, Misfit):
        return Verdict(misfit=fit)
    return Verdict(fit=fit, taint=blocking_taint(sample.taints, alternative.tolerations))
