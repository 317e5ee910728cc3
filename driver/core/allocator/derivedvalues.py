# SPDX-License-Identifier: Apache-2.0
"""What constraints see of devices: published attributes, and those that a request derives.

Devices of one kind (see facts) have equal derived attributes, so each expression runs once per
kind. Used by templates and explanations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudra.api.attributes import AttributeValue
from gpudra.api.resource_v1 import Device
from gpudra.driver.core.allocator.constraints import Element, elements, lookup_attribute
from gpudra.driver.core.allocator.derived import Source
from gpudra.driver.core.allocator.facts import Sample
from gpudra.driver.core.cel import CelDevice, CelEvaluationError, compile_attribute


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived attribute of one kind of device, or why there is none."""

    value: AttributeValue | None = None
    error: str = ""


class DerivedValues:
    """Derived attributes per kind of device, each worked out once.

    Args:
        samples: a device of each kind.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._known: dict[tuple[str, int], Derived] = {}

    def of_kind(self, source: Source, kind: int) -> Derived:
        """What a source with an expression gives for a kind of device."""
        attribute, expression = source
        found = self._known.get((expression, kind))
        if found is None:
            sample = self._samples[kind]
            device = CelDevice.from_device(sample.driver, sample.device)
            try:
                found = Derived(compile_attribute(expression).value_for(device))
            except CelEvaluationError as error:
                found = Derived(error=f"derived attribute {attribute}: {expression}: {error}")
            self._known[expression, kind] = found
        return found

    def of_device(self, source: Source, kind: int, driver: str, device: Device) -> Derived:
        """What a constraint sees of a device."""
        if source[1]:
            return self.of_kind(source, kind)
        return Derived(lookup_attribute(device, driver, source[0]))

    def elements(
        self, source: Source, kind: int, driver: str, device: Device
    ) -> tuple[Element, ...]:
        """The elements of a device's attribute; none where the expression fails."""
        if source[1]:
            return elements(self.of_kind(source, kind).value)
        return elements(lookup_attribute(device, driver, source[0]))
