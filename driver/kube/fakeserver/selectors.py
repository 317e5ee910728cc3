# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors as the API server reads them. Pure; used by the object store."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpudra.api.errors import InvalidError
from gpudra.driver.kube.resources import Obj

Predicate = Callable[[Obj], bool]

_SET_TERM = re.compile(r"^(!?)\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)$")
_TERM = re.compile(r"^([^\s!=,()]+)\s*(==|!=|=)\s*([^\s!=,()]*)$")
_EXISTS = re.compile(r"^(!?)\s*([^\s!=,()]+)$")
# A comma inside parentheses separates values, not terms.
_COMMA = re.compile(r",(?![^(]*\))")


def label_predicate(text: str) -> Predicate | None:
    """Test for a label selector; None = everything. Raises InvalidError (400) for bad syntax."""
    tests = [_label_test(term.strip()) for term in _COMMA.split(text) if term.strip()]
    if not tests:
        return None
    return lambda obj: all(test(_labels(obj)) for test in tests)


def field_predicate(text: str, selectable: Iterable[str]) -> Predicate | None:
    """Test for a field selector; None = everything.

    Raises:
        InvalidError: (400) bad syntax, or a field that the kind does not offer.
    """
    allowed = {"metadata.name", "metadata.namespace", *selectable}
    tests = [_field_test(term.strip(), allowed) for term in text.split(",") if term.strip()]
    if not tests:
        return None
    return lambda obj: all(test(obj) for test in tests)


def both(first: Predicate | None, second: Predicate | None) -> Predicate | None:
    """Both tests; None where neither restricts."""
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)


def matches_label_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether labels fit a ``metav1.LabelSelector``; None fits nothing, an empty one everything."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions") or ():
        key, values = term["key"], term.get("values") or []
        present = key in labels
        held = {
            "In": present and labels.get(key) in values,
            "NotIn": not present or labels.get(key) not in values,
            "Exists": present,
            "DoesNotExist": not present,
        }
        if not held.get(term["operator"], False):
            return False
    return True


def field_value(obj: Obj, path: str) -> str:
    """A field as text; missing fields are empty text, as for the server."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _labels(obj: Obj) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def _label_test(term: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET_TERM.match(term):
        _, key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values
    if match := _TERM.match(term):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.match(term):
        negated, key = match.groups()
        return lambda labels: (key in labels) != bool(negated)
    raise InvalidError(f"unable to parse label selector: {term!r}", status=400, reason="BadRequest")


def _field_test(term: str, allowed: set[str]) -> Predicate:
    match = _TERM.match(term)
    if match is None:
        raise InvalidError(
            f"unable to parse field selector: {term!r}", status=400, reason="BadRequest"
        )
    path, operator, value = match.groups()
    if path not in allowed:
        raise InvalidError(f"field label not supported: {path}", status=400, reason="BadRequest")
    if operator == "!=":
        return lambda obj: field_value(obj, path) != value
    return lambda obj: field_value(obj, path) == value
