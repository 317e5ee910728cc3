# SPDX-License-Identifier: Apache-2.0
"""Semantic versions, strictly as semver 2.0.0 writes and orders them.

``resource.k8s.io/v1`` validates ``version`` attributes by this grammar (types.go,
DeviceAttribute.version, at most 64 bytes), and CEL compares them by this order.
"""

import functools
import re
from dataclasses import dataclass, field

from gpudra.api.errors import InputError

MAX_LENGTH = 64  # DeviceAttributeMaxValueLength

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_GRAMMAR = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    rf"(?:-(?P<pre>{_PRE}(?:\.{_PRE})*))?"
    r"(?:\+(?P<build>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_LOOSE = re.compile(r"[vV]?(?P<core>[0-9]+(?:\.[0-9]+){0,2})(?P<rest>[-+].*)?", re.DOTALL)
_MAX_NUMBER = 2**64 - 1  # the Go library that the API server uses holds each number in a uint64
_MAX_DIGITS = len(str(_MAX_NUMBER))

_Precedence = tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """One version. Equality and order ignore build metadata (semver 2.0.0, item 10)."""

    text: str
    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    _key: _Precedence = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = tuple(
            # Numbers by length, then digits: as long as one likes, without conversion.
            (0, len(part), part) if part.isdigit() else (1, 0, part)
            for part in self.prerelease
        )
        # A release sorts after all of its own pre-releases (item 11.3).
        key = (self.major, self.minor, self.patch, 0 if parts else 1, parts)
        object.__setattr__(self, "_key", key)

    @classmethod
    def parse(cls, text: str) -> "Semver":
        """Parses a strict semver 2.0.0 text.

        Raises:
            InputError: the text is not one.
        """
        found = _GRAMMAR.fullmatch(text)
        if found is None or not text.isascii():
            raise InputError(
                f"{text!r} is not a semantic version", hint="write MAJOR.MINOR.PATCH, as in 1.2.3"
            )
        texts = [found[name] for name in ("major", "minor", "patch")]
        # By length first: Python refuses to convert very long numbers.
        if max(map(len, texts)) > _MAX_DIGITS or max(map(int, texts)) > _MAX_NUMBER:
            raise InputError(f"{text[:MAX_LENGTH]!r} has a number above 2^64-1")
        numbers = [int(one) for one in texts]
        pre = tuple(found["pre"].split(".")) if found["pre"] else ()
        return cls(text, numbers[0], numbers[1], numbers[2], pre)

    @classmethod
    def normalize(cls, text: str) -> "Semver":
        """Parses a loose text: a leading ``v``, missing minor or patch and leading zeros are mended.

        This is the rule of the CEL function ``semver(text, true)``, and how driver versions such
        as ``535.54.03`` become publishable.

        Raises:
            InputError: the text cannot be mended.
        """
        found = _LOOSE.fullmatch(text)
        if found is None:
            raise InputError(f"{text!r} is not a version", hint="write numbers split by dots")
        numbers = [part.lstrip("0") or "0" for part in found["core"].split(".")]
        numbers += ["0"] * (3 - len(numbers))
        return cls.parse(".".join(numbers) + (found["rest"] or ""))

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: "Semver") -> bool:
        if not isinstance(other, Semver):
            return NotImplemented
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)
