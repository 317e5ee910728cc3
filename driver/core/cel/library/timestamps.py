# SPDX-License-Identifier: Apache-2.0
"""Parts of timestamps and durations: ``getFullYear``, ``getHours`` and their kin."""

import datetime as dt
import functools
import re
import zoneinfo
from collections.abc import Callable

from gpudra.driver.core.cel.declarations import Function, Overload, method
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.types import DURATION, INT, STRING, TIMESTAMP
from gpudra.driver.core.cel.values import Duration, Timestamp

_SECOND = 10**9
_DAY = 86400
_EPOCH = dt.date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats after 400 years; Python's ends at 9999, a zone may reach further.
_CYCLE_DAYS, _CYCLE_YEARS = 146097, 400
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)

# Gets seconds since 1970 in local time.
_Part = Callable[[int], int]


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    # Go's LoadLocation: "" and "UTC" are UTC; ".." or a leading slash never is a zone.
    try:
        return zoneinfo.ZoneInfo(name or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise CelValueError(
            f"{name!r} is no time zone", hint="write for example Europe/Rome or +01:00"
        ) from error


def _offset(name: str, seconds: int) -> int:
    """Seconds east of UTC at a moment."""
    hours, colon, minutes = name.partition(":")
    if not colon:
        if name in {"", "UTC"}:
            return 0
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        span = min(max(seconds, -62135510400), 253402214400)  # a day inside Python's range
        local = (moment + dt.timedelta(seconds=span)).astimezone(_zone(name))
        offset = local.utcoffset()
        return int(offset.total_seconds()) if offset is not None else 0
    if _NUMBER.fullmatch(hours) is None or _NUMBER.fullmatch(minutes) is None or len(name) > 18:
        raise CelValueError(f"{name!r} is no time zone", hint="write for example +01:00")
    total = int(hours) * 60
    total += -int(minutes) if name.startswith("-") else int(minutes)
    return total * 60


def _date(seconds: int) -> tuple[int, dt.date]:
    """The year, and a date of the same month and day in a year that Python knows."""
    ordinal = seconds // _DAY + _EPOCH
    cycles = 0
    if ordinal < 1:
        cycles = -1
    elif ordinal > dt.date.max.toordinal():
        cycles = 1
    date = dt.date.fromordinal(ordinal - cycles * _CYCLE_DAYS)
    return date.year + cycles * _CYCLE_YEARS, date


def _overloads(name: str, part: _Part) -> list[Overload]:
    def in_utc(moment: Timestamp) -> int:
        return part(moment.nanos // _SECOND)

    def in_zone(moment: Timestamp, zone: str) -> int:
        seconds = moment.nanos // _SECOND
        return part(seconds + _offset(zone, seconds))

    with_zone = f"{name}_tz" if name == "timestamp_to_seconds" else f"{name}_with_tz"
    return [
        method(name, [TIMESTAMP], INT, in_utc),
        method(with_zone, [TIMESTAMP, STRING], INT, in_zone),
    ]


def _spans(name: str, nanos: int) -> list[Overload]:
    def whole(span: Duration) -> int:
        count = abs(span.nanos) // nanos
        return -count if span.nanos < 0 else count

    return [method(name, [DURATION], INT, whole)]


def _millis(moment: Timestamp) -> int:
    return moment.nanos % _SECOND // 10**6


def _millis_in_zone(moment: Timestamp, zone: str) -> int:
    _offset(zone, moment.nanos // _SECOND)  # a wrong zone is an error even where it is not needed
    return _millis(moment)


_PARTS: dict[str, tuple[str, _Part]] = {
    "getFullYear": ("timestamp_to_year", lambda s: _date(s)[0]),
    "getMonth": ("timestamp_to_month", lambda s: _date(s)[1].month - 1),
    "getDayOfYear": ("timestamp_to_day_of_year", lambda s: _date(s)[1].timetuple().tm_yday - 1),
    "getDayOfMonth": ("timestamp_to_day_of_month", lambda s: _date(s)[1].day - 1),
    "getDate": ("timestamp_to_day_of_month_1_based", lambda s: _date(s)[1].day),
    "getDayOfWeek": ("timestamp_to_day_of_week", lambda s: (s // _DAY + 4) % 7),
    "getHours": ("timestamp_to_hours", lambda s: s % _DAY // 3600),
    "getMinutes": ("timestamp_to_minutes", lambda s: s % 3600 // 60),
    "getSeconds": ("timestamp_to_seconds", lambda s: s % 60),
}
_SPANS = {
    "getHours": ("duration_to_hours", 3600 * _SECOND),
    "getMinutes": ("duration_to_minutes", 60 * _SECOND),
    "getSeconds": ("duration_to_seconds", _SECOND),
}

FUNCTIONS: list[Function] = [
    *(
        Function(name, (*_overloads(*parts), *(_spans(*_SPANS[name]) if name in _SPANS else ())))
        for name, parts in _PARTS.items()
    ),
    Function(
        "getMilliseconds",
        (
            method("timestamp_to_milliseconds", [TIMESTAMP], INT, _millis),
            method("timestamp_to_milliseconds_with_tz", [TIMESTAMP, STRING], INT, _millis_in_zone),
            *_spans("duration_to_milliseconds", 10**6),
        ),
    ),
]
