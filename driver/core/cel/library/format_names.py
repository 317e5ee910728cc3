# SPDX-License-Identifier: Apache-2.0
"""Named formats: ``format.dns1123Label().validate(text)`` (apiserver ``format.go``).

``validate`` gives an optional list of complaints; none means that the text is fine. How many there
are is as upstream, the wording is ours.
"""

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.equality import STRICT
from gpudra.driver.core.cel.library.url import is_url
from gpudra.driver.core.cel.types import FORMAT, STRING, list_of, optional_of
from gpudra.driver.core.cel.values import NONE, UNHASHABLE, Optional, register_type

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_NAME_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_UUID = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII
)
_BASE64 = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_CLOCK = re.compile(
    r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)

Check = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class FormatValue:
    """A format: its name, its test, and the size that its cost is reckoned with."""

    name: str
    check: Check
    regex_size: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormatValue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


register_type(FormatValue, FORMAT.name)
STRICT.add(FormatValue)
UNHASHABLE.add(FormatValue)


def _limit(text: str, limit: int) -> list[str]:
    too_long = len(text.encode()) > limit
    return [f"must be no more than {limit} bytes"] if too_long else []


def _label(text: str) -> list[str]:
    found = _limit(text, 63)
    if not _DNS_LABEL.fullmatch(text):
        found.append("must be a DNS label: lower-case letters, digits, and '-' inside")
    return found


def _subdomain(text: str) -> list[str]:
    found = _limit(text, 253)
    if not _DNS_SUBDOMAIN.fullmatch(text):
        found.append("must be DNS labels joined by dots, as in example.com")
    return found


def _label_1035(text: str) -> list[str]:
    found = _limit(text, 63)
    if not _DNS_1035.fullmatch(text):
        found.append("must be a DNS label that begins with a letter")
    return found


def _prefix(check: Check) -> Check:
    """The text may end in a dash, since something will be appended."""

    def masked(text: str) -> list[str]:
        # Upstream drops one more character than the dash; the verdict hardly ever depends on it.
        if len(text) > 1 and text.endswith("-"):
            text = text.encode()[:-2].decode(errors="replace") + "a"
        return check(text)

    return masked


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return ["must be a name, or a DNS subdomain, a slash and a name"]
    found = []
    if len(parts) == 2:
        found += ["the prefix must not be empty"] if not parts[0] else _subdomain(parts[0])
    name = parts[-1]
    if not name:
        found.append("the name must not be empty")
    else:
        found += _limit(name, 63)
    if not _NAME_PART.fullmatch(name):
        found.append("must begin and end with a letter or digit, with '-', '_', '.' inside")
    return found


def _label_value(text: str) -> list[str]:
    found = _limit(text, 63)
    if text and not _NAME_PART.fullmatch(text):
        found.append("must be empty, or begin and end with a letter or digit")
    return found


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    year = int(text[:4])
    try:
        # Go knows a year 0, which is a leap year; Python does not.
        dt.date(year or 4, int(text[5:7]), int(text[8:]))
    except ValueError:
        return False
    return True


def _is_datetime(text: str) -> bool:
    parts = text.lower().split("t")
    if len(parts) < 2 or not _is_date(parts[0]):
        return False
    found = _CLOCK.fullmatch(parts[1])
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


def _is_base64(text: str) -> bool:
    return _BASE64.fullmatch(text) is not None


def _simple(test: Callable[[str], bool], message: str) -> Check:
    return lambda text: [] if test(text) else [message]


FORMATS: dict[str, FormatValue] = {
    "dns1123Label": FormatValue("DNS1123Label", _label, 30),
    "dns1123Subdomain": FormatValue("DNS1123Subdomain", _subdomain, 60),
    "dns1035Label": FormatValue("DNS1035Label", _label_1035, 30),
    "qualifiedName": FormatValue("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": FormatValue("DNS1123LabelPrefix", _prefix(_label), 30),
    "dns1123SubdomainPrefix": FormatValue("DNS1123SubdomainPrefix", _prefix(_subdomain), 60),
    "dns1035LabelPrefix": FormatValue("DNS1035LabelPrefix", _prefix(_label_1035), 30),
    "labelValue": FormatValue("LabelValue", _label_value, 40),
    "uri": FormatValue("URI", _simple(is_url, "must be a URI"), 1103),
    "uuid": FormatValue(
        "uuid", _simple(lambda text: _UUID.fullmatch(text) is not None, "must be a UUID"), 70
    ),
    "byte": FormatValue("byte", _simple(_is_base64, "must be base64"), 84),
    "date": FormatValue("date", _simple(_is_date, "must be a date such as 2026-01-31"), 71),
    "datetime": FormatValue("datetime", _simple(_is_datetime, "must be a date and time"), 71),
}


def _validate(kind: FormatValue, text: str) -> Optional:
    complaints = kind.check(text)
    return Optional(tuple(complaints)) if complaints else NONE


def _named(name: str) -> Optional:
    return Optional(FORMATS[name]) if name in FORMATS else NONE


def _constant(value: FormatValue) -> Callable[[], FormatValue]:
    return lambda: value


FUNCTIONS: list[Function] = [
    Function(
        "validate",
        (method("format-validate", [FORMAT, STRING], optional_of(list_of(STRING)), _validate),),
    ),
    Function("format.named", (overload("format-named", [STRING], optional_of(FORMAT), _named),)),
    *(
        Function(f"format.{name}", (overload(f"format.{name}", [], FORMAT, _constant(value)),))
        for name, value in FORMATS.items()
    ),
]
