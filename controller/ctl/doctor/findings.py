# SPDX-License-Identifier: Apache-2.0
"""What a check says. Made by the checks of this package, printed by ``cli``."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_SHOWN = 5


class Status(StrEnum):
    """How it stands.

    ``unknown`` is for what could not be looked at, mostly for want of a right; it is not red,
    since nothing is known to be wrong.
    """

    OK = "ok"
    WARNING = "warning"
    UNKNOWN = "unknown"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence about one thing.

    Attributes:
        check: stable name of the check; a program may go by it.
        status: how it stands.
        message: what was found.
        fix: what to do; empty when all is well.
        objects: names of what it is about, sorted, at most as many as there are.
    """

    check: str
    status: Status
    message: str
    fix: str = ""
    objects: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Plain types, for ``-o json|yaml``."""
        return {
            "check": self.check,
            "status": str(self.status),
            "message": self.message,
            "fix": self.fix,
            "objects": list(self.objects),
        }


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check=check, status=Status.OK, message=message)


def warning(check: str, message: str, fix: str, objects: Iterable[str] = ()) -> Finding:
    """It works, but less than it could."""
    return _made(Status.WARNING, check, message, fix, objects)


def error(check: str, message: str, fix: str, objects: Iterable[str] = ()) -> Finding:
    """Somebody has to act."""
    return _made(Status.ERROR, check, message, fix, objects)


def unknown(check: str, message: str, fix: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(check=check, status=Status.UNKNOWN, message=message, fix=fix)


def named(objects: Iterable[str]) -> str:
    """``a, b, c and 7 more``, for a message about many."""
    names = sorted(objects)
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _made(status: Status, check: str, message: str, fix: str, objects: Iterable[str]) -> Finding:
    return Finding(
        check=check, status=status, message=message, fix=fix, objects=tuple(sorted(objects))
    )
