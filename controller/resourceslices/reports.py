# SPDX-License-Identifier: Apache-2.0
"""What the slice controller tells about itself, once per cause."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpudra.api.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)


class ReportKind(StrEnum):
    """CamelCase, fit for the reason of an Event."""

    FIELDS_DROPPED = "SliceFieldsDropped"
    CHANGED_BY_SERVER = "SliceChangedByServer"
    REFUSED = "SliceRefused"
    FORBIDDEN = "SliceForbidden"
    NAME_TAKEN = "SliceNameTaken"
    CONFLICT = "SliceConflict"
    NOT_FOUND = "NotFound"
    UNAVAILABLE = "ApiUnavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReport:
    """Something that an admin should know.

    Attributes:
        kind: what it is about.
        pool: name of the pool.
        message: for people.
        error: the cause, if there is one.
    """

    kind: ReportKind
    pool: str
    message: str
    error: ApiError | None = None


class NameTakenError(ConflictError):
    """A slice that is not ours has the name that one of ours should have."""


def kind_of(error: ApiError) -> ReportKind:
    """The kind that fits an error of the API."""
    for classes, kind in (
        (NameTakenError, ReportKind.NAME_TAKEN),
        (ConflictError, ReportKind.CONFLICT),
        (ForbiddenError, ReportKind.FORBIDDEN),
        (InvalidError, ReportKind.REFUSED),
        (NotFoundError, ReportKind.NOT_FOUND),
    ):
        if isinstance(error, classes):
            return kind
    return ReportKind.UNAVAILABLE


class Reporter:
    """Tells each cause once, until all is well again.

    Args:
        pool: name of the pool.
        tell: told each report.
    """

    def __init__(self, pool: str, tell: Callable[[SliceReport], None]) -> None:
        self._pool = pool
        self._tell = tell
        self._told: set[tuple[ReportKind, str]] = set()

    def report(self, kind: ReportKind, message: str, error: ApiError | None = None) -> None:
        """Tells it unless it was told already."""
        # Of troubles with the connection each attempt words another message.
        cause = (kind, "" if kind is ReportKind.UNAVAILABLE else message)
        if cause not in self._told:
            self._told.add(cause)
            self._tell(SliceReport(kind=kind, pool=self._pool, message=message, error=error))

    def well(self) -> None:
        """All is as it should be: troubles that come back are news. Dropped fields stay known."""
        self._told = {cause for cause in self._told if cause[0] is ReportKind.FIELDS_DROPPED}
