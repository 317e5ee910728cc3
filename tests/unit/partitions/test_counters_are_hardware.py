# SPDX-License-Identifier: Apache-2.0
"""The counters that we publish allow exactly what the hardware allows.

The hardware is the pretended NVML: it decides in C by intervals of memory slices, compute slices
and engines, and has never heard of counters.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.errors import HardwareError
from gpudra.api.resource_v1 import CounterConsumption, CounterSet
from gpudra.driver.core.inventory import Gpu, MigProfile, Placement
from gpudra.driver.core.partitions import consume_all, consume_placement, counter_set
from gpudra.driver.devicelib.nvml import NvmlLib
from gpudra.driver.devicelib.simulated.catalog import board_catalog
from tests.fakenvml.machine import FakeMachine

PUBLISHED = Path(__file__).parents[2] / "fixtures/mig/published-layouts.yaml"
BOARDS = [name for name, board in board_catalog().items() if board.mig]
Place = tuple[MigProfile, Placement]
Layout = frozenset[tuple[int, int]]  # profile id and start of each instance

HARDWARE = """
apiVersion: gpudra.io/v1alpha1
kind: Hardware
metadata: {{name: one-card}}
spec:
  driver: {{version: "580.126.20", cuda: "13.0"}}
  gpus:
    - {{board: {board}, pci: {{busId: "0000:19:00.0", bridges: ["0000:15:01.0"]}}, mig: {{enabled: true}}}}
"""


class Card:
    """One card of a board with MIG on, and its counters."""

    def __init__(self, board: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "hardware.yaml").write_text(HARDWARE.format(board=board))
        self.machine = FakeMachine(str(folder / "hardware.yaml"), folder)
        monkeypatch.setenv("FAKENVML_STATE", str(self.machine.state))
        self.lib = NvmlLib(library=self.machine.library, host_root=self.machine.root)
        self.gpu: Gpu = self.lib.discover().gpus[0]
        assert self.gpu.mig is not None
        self.set: CounterSet = counter_set(self.gpu, partitioned=True)
        self.places: list[Place] = [
            (profile, at) for profile in self.gpu.mig.profiles for at in profile.placements
        ]

    def allowed(self, layout: list[Place]) -> bool:
        """Whether the counters allow these instances together."""
        taken: dict[str, int] = {}
        for profile, at in layout:
            for entry in consume_placement(self.set, profile, at):
                for name, counter in entry.counters.items():
                    taken[name] = taken.get(name, 0) + counter.value.value
        return all(amount <= self.set.counters[name].value.value for name, amount in taken.items())

    def create(self, place: Place) -> int | None:
        """Creates an instance; its id, or None where the hardware refuses."""
        profile, at = place
        try:
            return self.lib.partitions.create_mig_instance(
                self.gpu.key, profile.id, at.start
            ).gpu_instance_id
        except HardwareError:
            return None

    def destroy(self, instance: int) -> None:
        """Takes it away again."""
        self.lib.partitions.destroy_mig_instance(self.gpu.key, instance)


@pytest.fixture(params=BOARDS)
def card(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Card]:
    """A card of every board that has MIG."""
    made = Card(request.param, tmp_path, monkeypatch)
    yield made
    made.lib.close()


def maximal_by_counters(card: Card) -> set[Layout]:
    """Every layout of ``card.places`` that the counters allow and to which nothing can be added."""
    found: set[Layout] = set()

    def grow(layout: list[Place], first: int) -> None:
        rest = [
            index
            for index, place in enumerate(card.places)
            if place not in layout and card.allowed([*layout, place])
        ]
        if not rest:
            found.add(frozenset((profile.id, at.start) for profile, at in layout))
        for index in rest:
            if index >= first:
                grow([*layout, card.places[index]], index + 1)

    grow([], 0)
    return found


def test_maximal_layouts_are_the_hardwares(card: Card) -> None:
    """Each layout that is full by the counters can be made, and is full by the hardware too."""
    for layout in maximal_by_counters(card):
        places = [place for place in card.places if (place[0].id, place[1].start) in layout]
        made = [card.create(place) for place in places]
        assert None not in made, layout
        more = [
            place for place in card.places if place not in places and card.create(place) is not None
        ]
        assert more == [], layout
        for instance in made:
            assert instance is not None
            card.destroy(instance)


def test_full_layouts_are_the_published_ones(card: Card) -> None:
    """Of the plain profiles, the counters allow exactly the layouts that the vendor draws."""
    assert card.gpu.mig is not None
    plain = {
        profile.compute_slices: profile
        for profile in sorted(card.gpu.mig.profiles, key=lambda one: -(one.memory_bytes or 0))
        if not profile.name.endswith("+me")
    }
    card.places = [place for place in card.places if place[0] in plain.values()]
    width = {profile.id: slices for slices, profile in plain.items()}
    found = sorted(
        [width[profile] for profile, _ in sorted(layout, key=lambda one: one[1])]
        for layout in maximal_by_counters(card)
    )
    published = yaml.safe_load(PUBLISHED.read_text())
    board = {7: "seven-slices", 4: "four-slices"}[card.gpu.mig.compute_slices]
    assert found == sorted(published[board])


def test_any_walk_agrees_step_by_step(card: Card) -> None:
    """However instances come and go, counters and hardware agree on each next one."""

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, len(card.places) - 1), st.booleans()), max_size=14))
    def walk(steps: list[tuple[int, bool]]) -> None:
        held: dict[int, Place] = {}
        for index, take in steps:
            place = card.places[index]
            if not take and held:
                gone = sorted(held)[index % len(held)]
                card.destroy(gone)
                del held[gone]
                continue
            allowed = card.allowed([*held.values(), place]) and place not in held.values()
            instance = card.create(place)
            assert (instance is not None) == allowed, (held, place)
            if instance is not None:
                held[instance] = place
        for instance in held:
            card.destroy(instance)

    walk()


def test_the_whole_card_excludes_every_partition(card: Card) -> None:
    """Whoever has the whole card, or its share, leaves nothing for any placement."""
    (whole,) = consume_all(card.set)
    for profile, at in card.places:
        (part,) = consume_placement(card.set, profile, at)
        assert _over(card.set, whole, part)


def _over(everything: CounterSet, one: CounterConsumption, other: CounterConsumption) -> bool:
    return any(
        name in one.counters
        and one.counters[name].value + counter.value > everything.counters[name].value
        for name, counter in other.counters.items()
    )
