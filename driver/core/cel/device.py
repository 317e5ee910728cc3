# SPDX-License-Identifier: Apache-2.0
"""A device as expressions see it, and the frame in which one evaluation runs."""

from collections.abc import Mapping

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device
from gpudra.driver.core.cel.values import DomainMap, Value

Domains = Mapping[str, Mapping[str, Value]]


class CelDevice:
    """The ``device`` variable. Treat as frozen: evaluations of many selectors share it.

    Args:
        driver: name of the driver.
        attributes: domain → name → bool, int, str, Semver, or a tuple of one of these.
        capacity: domain → name → Quantity.
        allow_multiple_allocations: whether several claims may share the device.
    """

    __slots__ = ("_view", "allow_multiple_allocations", "attributes", "capacity", "driver")

    def __init__(
        self,
        driver: str,
        attributes: Domains,
        capacity: Mapping[str, Mapping[str, Quantity]],
        allow_multiple_allocations: bool = False,
    ) -> None:
        self.driver = driver
        self.attributes: dict[str, dict[str, Value]] = _plain(attributes)
        self.capacity: dict[str, dict[str, Value]] = _plain(capacity)
        self.allow_multiple_allocations = allow_multiple_allocations
        self._view: dict[str, Value] | None = None

    @classmethod
    def from_device(cls, driver: str, device: Device) -> "CelDevice":
        """A device of a ResourceSlice; names without a domain belong to the driver's."""
        attributes: dict[str, dict[str, Value]] = {}
        for name, value in device.attributes.items():
            domain, identifier = _split(name, driver)
            attributes.setdefault(domain, {})[identifier] = value
        capacity: dict[str, dict[str, Quantity]] = {}
        for name, entry in device.capacity.items():
            domain, identifier = _split(name, driver)
            capacity.setdefault(domain, {})[identifier] = entry.value
        return cls(driver, attributes, capacity, bool(device.allow_multiple_allocations))

    def view(self) -> dict[str, Value]:
        """The device as a map, for expressions that use it as a whole."""
        if self._view is None:
            self._view = {
                "driver": self.driver,
                "allowMultipleAllocations": self.allow_multiple_allocations,
                "attributes": DomainMap(self.attributes),
                "capacity": DomainMap(self.capacity),
            }
        return self._view


def _plain(domains: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, Value]]:
    return {
        domain: names if type(names) is dict else dict(names) for domain, names in domains.items()
    }


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


class Frame:
    """One evaluation: the device, the variables of loops and bindings, and the cost so far.

    Expressions that need neither variables nor a running cost are given the device itself, which
    has the same fields.
    """

    __slots__ = (
        "allow_multiple_allocations",
        "attributes",
        "capacity",
        "cost",
        "driver",
        "limit",
        "variables",
        "view",
    )

    def __init__(self, device: CelDevice, variables: int, limit: int) -> None:
        self.driver = device.driver
        self.attributes = device.attributes
        self.capacity = device.capacity
        self.allow_multiple_allocations = device.allow_multiple_allocations
        self.view = device.view
        self.variables: list[Value] = [None] * variables
        self.cost = 0
        self.limit = limit
