# SPDX-License-Identifier: Apache-2.0
"""Writes docs/attributes.md from the tables in gpudra.driver.core.attributes.

Run: ``python -m tools.attributes``. A test fails when the page and the tables differ.
"""

from collections.abc import Iterable
from pathlib import Path

from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.attributes import ATTRIBUTES, CAPACITIES

PAGE = Path(__file__).parents[1] / "docs/attributes.md"

_HEAD = """\
# Attributes and capacities of devices

Made by `python -m tools.attributes` from the tables in `driver/core/attributes.py`; do not edit.

Names without a domain belong to the driver. With the default driver name a selector writes
`device.attributes["gpu.gpudra.io"].productName` and `device.capacity["gpu.gpudra.io"].memory`,
and a constraint `matchAttribute: gpu.gpudra.io/pcieSwitch`. Names with the domain
`resource.kubernetes.io` are Kubernetes' own and are the same for every driver.

An attribute that a card does not tell is left out, never published as 0 or empty text. A selector
that reads an attribute which is not there is a run-time error, and ends the scheduling attempt of
the whole pod: guard it with `"name" in device.attributes["gpu.gpudra.io"]`.

Text is cut to 64 bytes. A name, once published, keeps its meaning; a new meaning gets a new name.
"""


def page() -> str:
    """The whole page."""
    attributes = [
        (f"`{one.name}`", one.type, _forms(one.kinds), one.when, f"`{one.example}`", one.since)
        for one in ATTRIBUTES
    ]
    capacities = [
        (f"`{one.name}`", _forms(one.kinds), one.when, f"`{one.example}`", one.since)
        for one in CAPACITIES
    ]
    return "\n".join(
        [
            _HEAD,
            "## Attributes",
            "",
            *_table(("name", "type", "on", "when", "example", "since"), attributes),
            "",
            "## Capacities",
            "",
            *_table(("name", "on", "when", "example", "since"), capacities),
            "",
        ]
    )


def _forms(kinds: frozenset[DeviceKind]) -> str:
    if kinds == frozenset(DeviceKind):
        return "every device"
    return ", ".join(str(kind) for kind in DeviceKind if kind in kinds)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join('---' for _ in head)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
