# SPDX-License-Identifier: Apache-2.0
"""One line a card: bars, who holds what of it, what is free; and colours only where they belong."""

import io
from typing import Any

import pytest

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.ctl import cards, printers
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.forms import EVERYTHING

DRIVER = "gpu.gpudra.io"
NODE = "node-a"
SLICES = slices_of_hardware("dgx-h100-8x80", driver=DRIVER, node_name=NODE, policy=EVERYTHING)
RAW = [one.to_dict() for one in SLICES]
PLAIN = printers.Look()


def named(form: str, ending: str = "") -> str:
    """The first device of a form."""
    return next(
        device.name
        for one in SLICES
        for device in one.spec.devices
        if device.attributes["type"] == form and device.name.endswith(ending)
    )


def claim(name: str, device: str, pod: str = "", **result: Any) -> ResourceClaim:
    """A claim that holds a device."""
    given = {"request": "main", "driver": DRIVER, "pool": NODE, "device": device, **result}
    pods = [{"resource": "pods", "name": pod, "uid": pod}] if pod else []
    return ResourceClaim.from_dict(
        {
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"devices": {"requests": [{"name": "main"}]}},
            "status": {"allocation": {"devices": {"results": [given]}}, "reservedFor": pods},
        }
    )


def lines(*claims: ResourceClaim, free: bool = False) -> list[str]:
    """The table without its headers."""
    found = cards.cards_of(RAW, [one.to_dict() for one in claims], DRIVER)
    headers, rows = cards.table(found, free=free, look=PLAIN)
    return printers.format_table(headers, rows).splitlines()[1:]


def test_an_idle_node_has_a_line_for_each_card() -> None:
    """Eight cards of two hundred devices; empty bars, nobody holds them."""
    found = lines()
    assert len(found) == 8
    assert "░░░░░░░░░░   0.0/79.6Gi" in found[0]
    assert found[0].split()[-2:] == ["-", "-"]


def test_shares_and_parts_fill_the_bars_and_name_their_holders() -> None:
    """Two shares of one card with what each has; a MIG device by its profile."""
    share = named("share")
    amounts = {"memory": "20Gi", "compute": "25"}
    first = lines(
        claim("one", share, "pod-1", consumedCapacity=amounts),
        claim("two", share, consumedCapacity={"memory": "20Gi"}),
    )[0]
    assert "█████░░░░░  40.0/79.6Gi" in first
    assert "██░░░░░░░░  25%" in first
    assert "team/one (pod-1) [20Gi 25%], team/two [20Gi]" in first
    part = lines(claim("part", named("mig", "-mig-3g40gb-0")))[0]
    assert "team/part [mig-3g40gb-0]" in part
    assert " 45%" in part


def test_who_only_looks_on_is_shown_at_the_card() -> None:
    """Admin access to the monitor takes nothing and is marked."""
    whole, monitor = named("gpu"), named("monitor")
    found = lines(claim("own", whole), claim("look", monitor, adminAccess=True))[0]
    assert "team/own, team/look [admin]" in found


def test_what_is_held_and_not_published_is_shown() -> None:
    """A card that went away is listed as long as a claim has it."""
    assert lines(claim("lost", "gpu-gone"))[-1].split()[:4] == [
        NODE,
        "gpu-gone",
        "not",
        "published",
    ]


def test_free_shows_what_could_be_had() -> None:
    """The largest device of each form; data for programs says it in bytes."""
    found = cards.cards_of(RAW, [claim("own", named("gpu")).to_dict()], DRIVER)
    assert [bool(one.view.room) for one in found] == [False] + [True] * 7
    assert "whole 79.6Gi, mig 79.2Gi, share 79.6Gi" in lines(free=True)[0]
    data = found[1].as_data()
    assert (data["state"], data["memoryHeld"], data["heldBy"]) == ("free", 0, [])
    assert data["free"]["gpu"] == data["memory"] == 81559 * 2**20
    assert set(data) == {
        *("pool", "gpu", "product", "state", "memory", "memoryHeld", "computeHeld", "free"),
        *("heldBy", "taints", "devices"),
    }


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (0, ".........."),
        (0.001, "#........."),
        (0.5, "#####....."),
        (1, "##########"),
        (7, "#" * 10),
    ],
)
def test_a_bar_shows_its_part(part: float, wanted: str) -> None:
    """Something is never shown as nothing, too much is full."""
    assert printers.bar(part, printers.Look(blocks=False)) == wanted


class Terminal(io.StringIO):
    """A stream that says it is one."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """It is."""
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "colour"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals(
    stream: io.StringIO, environ: dict[str, str], colour: bool
) -> None:
    """And for nobody who set NO_COLOR (https://no-color.org)."""
    assert printers.use_colour(stream, environ) is colour


def test_painted_cells_do_not_shift_columns() -> None:
    """Escape codes take no room."""
    painted = printers.painted("ab", printers.RED, on=True)
    table = printers.format_table(("X", "Y"), [(painted, "Q"), ("abc", "R")])
    assert [line.index(mark) for line, mark in zip(table.splitlines(), "YQR", strict=True)] == [
        6,
        6 + len(painted) - 2,
        6,
    ]
    assert printers.painted("ab", printers.RED, on=False) == "ab"
