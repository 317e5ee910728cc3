# SPDX-License-Identifier: Apache-2.0
"""Nodes that are like each other, seen through one question.

By far the most nodes have one pool of their own and nothing unusual. Such a node is told by a few
numbers (its *model*: equal devices in equal places) and one integer (which of them are in use), so
that its answer is a look-up. Everything else goes by ``Question``'s general way; both give the same
answers. Used by ``question``.
"""

from collections.abc import Callable, Hashable, Sequence

from gpudra.driver.core.allocator.counters import IslandState, held_state
from gpudra.driver.core.allocator.reads import Reads
from gpudra.driver.core.allocator.records import PoolRecord
from gpudra.driver.core.allocator.search import Search
from gpudra.driver.core.allocator.template import Part, Template
from gpudra.driver.core.allocator.tries import Solution

_MAX_STATES = 50_000  # of one model that are remembered
_MAX_MODELS = 20_000


class Model:
    """Nodes whose only pools have equal devices in equal places, as far as a question can see.

    Attributes:
        template: theirs.
        answers: by devices in use.
    """

    def __init__(self, template: Template, part: Part) -> None:
        self.template = template
        self.answers: dict[int, Solution | None] = {}
        counters = part.pool.counters
        self._start: list[IslandState] = [
            (tuple([counters[slot] for _, slot in island.slots]), 0, 0, (), ())
            for island in template.islands
        ]
        self._held: dict[tuple[int, int], IslandState] = {}
        self._numbers: dict[tuple[int, IslandState], int] = {}
        self._hopeless: set[tuple[int, ...]] = set()
        # Where an expression may fail, the order of devices decides what is told.
        self._sure = not any(template.faults) and not any(
            found.errors for found in template.candidates.values()
        )

    def islands(self, used: int) -> tuple[IslandState, ...]:
        """The states of the islands."""
        if not used:
            return tuple(self._start)
        template = self.template
        taken: dict[int, int] = {}
        while used:
            low = used & -used
            used ^= low
            position = low.bit_length() - 1
            island = template.island_of[position]
            taken[island] = taken.get(island, 0) | 1 << template.local_of[position]
        states = list(self._start)
        held = self._held
        for entry in taken.items():
            state = held.get(entry)
            if state is None:
                island, members = entry
                state = held_state(template.islands[island], self._start[island], members)
                held[entry] = state
            states[entry[0]] = state
        return tuple(states)

    def find(
        self, used: int, search: Callable[[tuple[IslandState, ...]], Search]
    ) -> Solution | None:
        """The answer for these devices in use, remembered.

        Raises:
            Refusal: see Search.first; it is not remembered.
        """
        states = self.islands(used)
        key = self._multiset(states) if self._sure else None
        found = None
        if key is None or key not in self._hopeless:
            found = search(states).first()
            if found is None and key is not None:
                self._hopeless.add(key)
        if len(self.answers) >= _MAX_STATES:
            self.forget()
        self.answers[used] = found
        return found

    def _multiset(self, states: Sequence[IslandState]) -> tuple[int, ...]:
        """Equal for states that islands of one kind could exchange: no one fits more than another."""
        numbers = self._numbers
        found = []
        for island, state in zip(self.template.islands, states, strict=True):
            entry = (island.kind, state)
            number = numbers.get(entry)
            if number is None:
                number = numbers[entry] = len(numbers)
            found.append(number)
        found.sort()
        return tuple(found)

    def forget(self) -> None:
        """Drops what was found."""
        self.answers.clear()
        self._held.clear()
        self._numbers.clear()
        self._hopeless.clear()
        self.template.bounds.clear()


class Models:
    """The models of one question, and how records are told.

    Args:
        reads: facts that selectors can see.
        attributes: full names of attributes that constraints compare.

    Attributes:
        usable: whether the reads tell which columns matter.
        known: models by key.
        unready: keys of pools that contradict themselves.
    """

    def __init__(self, reads: Reads, attributes: Sequence[str]) -> None:
        self.usable = not reads.everything
        names = [f"{domain}/{identifier}" for domain, identifier in reads.attributes]
        self._full = tuple(dict.fromkeys([*names, *attributes]))
        self._names: dict[str, tuple[str, ...]] = {}
        self.known: dict[Hashable, Model] = {}
        self.unready: set[Hashable] = set()

    def key(self, record: PoolRecord) -> tuple[Hashable, ...] | None:
        """Equal for records of one model; None if the record is unusual."""
        if record.taints is not None:
            return None
        driver = record.key[0]
        names = self._names.get(driver)
        if names is None:
            names = self._names[driver] = self._names_for(driver)
        slices = record.slices
        if len(slices) == 1:
            own = slices[0].columns
            return (driver, own.body, *map(own.attributes.get, names)) if own.alone else None
        columns = record.columns
        if not columns:
            return None
        numbers = [own.attributes.get(name) for own in columns for name in names]
        return driver, record.base, *numbers

    def _names_for(self, driver: str) -> tuple[str, ...]:
        """As published: in the driver's own domain short names mean the same."""
        short = [
            full.removeprefix(f"{driver}/")
            for full in self._full
            if full.rpartition("/")[0] == driver
        ]
        return (*self._full, *short)

    def put(self, key: Hashable, model: Model) -> None:
        """Remembers a model."""
        if len(self.known) >= _MAX_MODELS:
            self.known.clear()
        if len(self.unready) >= _MAX_MODELS:
            self.unready.clear()
        self.known[key] = model
