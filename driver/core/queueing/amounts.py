# SPDX-License-Identifier: Apache-2.0
"""Amounts of GPU, in whole numbers: what a job takes, a queue may take, a cluster has."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from gpudra.api.queue import GPUS, MEMORY, MILLI, MODEL_PREFIX, parse_amount

MIB = 2**20


class Amounts(Mapping[str, int]):
    """Amounts by resource; what is 0 is left out, so equal amounts are equal objects.

    Keys and units are those of `gpudra.api.queue.parse_amount`: ``gpus`` and ``model/…`` in
    thousandths of a card, ``memory`` in bytes, ``compute`` in percent points, ``class/…`` devices.
    A missing resource reads as 0 with `of`.
    """

    __slots__ = ("_hash", "by_name")

    def __init__(self, values: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        self.by_name = {name: amount for name, amount in dict(values).items() if amount}
        self._hash: int | None = None

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """The amounts of a Queue.

        Raises:
            InputError: an amount or a resource that is not understood.
        """
        return cls({name: parse_amount(name, text) for name, text in texts.items()})

    @classmethod
    def total(cls, parts: Iterable["Amounts"]) -> Self:
        """The sum of many."""
        values: dict[str, int] = {}
        for part in parts:
            for name, amount in part.by_name.items():
                values[name] = values.get(name, 0) + amount
        return cls(values)

    def of(self, name: str) -> int:
        """The amount of one resource, 0 when there is none."""
        return self.by_name.get(name, 0)

    def __add__(self, other: "Amounts") -> "Amounts":
        values = dict(self.by_name)
        for name, amount in other.by_name.items():
            values[name] = values.get(name, 0) + amount
        return Amounts(values)

    def __sub__(self, other: "Amounts") -> "Amounts":
        values = dict(self.by_name)
        for name, amount in other.by_name.items():
            values[name] = values.get(name, 0) - amount
        return Amounts(values)

    def above(self, other: "Amounts") -> "Amounts":
        """What is left after taking away, never below 0."""
        taken = other.by_name
        return Amounts((name, max(0, have - taken.get(name, 0))) for name, have in self.items())

    def widest(self, other: "Amounts") -> "Amounts":
        """The larger of the two, resource by resource."""
        names = self.by_name.keys() | other.by_name.keys()
        return Amounts((name, max(self.of(name), other.of(name))) for name in names)

    def texts(self) -> dict[str, str]:
        """As people write them: ``{"gpus": "2.5", "memory": "80Gi"}``; in order of name."""
        return {name: amount_text(name, amount) for name, amount in sorted(self.by_name.items())}

    def __getitem__(self, name: str) -> int:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amounts) and self.by_name == other.by_name

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.by_name.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"Amounts({self.texts()})"


NOTHING = Amounts()


def amount_text(name: str, amount: int) -> str:
    """One amount as people write it."""
    if name == GPUS or name.startswith(MODEL_PREFIX):
        whole, rest = divmod(abs(amount), MILLI)
        text = f"{whole}.{rest:03d}".rstrip("0").rstrip(".") if rest else str(whole)
        return f"-{text}" if amount < 0 else text
    if name == MEMORY:
        return _memory_text(amount)
    return str(amount)


def _memory_text(amount: int) -> str:
    for unit, size in (("Gi", 2**30), ("Mi", MIB), ("Ki", 2**10)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)
