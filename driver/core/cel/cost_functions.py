# SPDX-License-Identifier: Apache-2.0
"""What calls cost at worst, by function and overload.

Numbers are part of the Kubernetes API: they decide which selectors may be stored. Sources: apiserver
``pkg/cel/library/cost.go``, cel-go ``checker/cost.go``, ``ext/lists.go`` and ``ext/sets.go``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpudra.driver.core.cel.ast import Literal, Node
from gpudra.driver.core.cel.cost_sizes import (
    LIST_BASE,
    MAX,
    ONE,
    REGEX_FACTOR,
    STRING_FACTOR,
    UNKNOWN,
    Estimate,
    Range,
    fixed,
)
from gpudra.driver.core.cel.types import FORMAT, QUANTITY, SEMVER, URL, Type

_FORMAT_REGEX = 128  # MaxNameFormatRegexSize
_FORMAT_SIZE = 64  # MaxFormatSize


@dataclass(frozen=True, slots=True)
class Argument:
    """A target or argument: its node, type, path within the device, and size if known."""

    node: Node
    type: Type
    path: tuple[str, ...]
    size: Range | None
    device_size: Callable[[tuple[str, ...]], Range | None]

    def extent(self) -> Range:
        """The size, or everything possible."""
        return self.size or self.device_size(self.path) or UNKNOWN

    def element(self) -> "Argument | None":
        """What the list holds; None if its type has no elements."""
        if not self.type.params:
            return None
        path = (*self.path, "@items") if self.path else ()
        return Argument(self.node, self.type.params[0], path, None, self.device_size)


Target = Argument | None
Estimator = Callable[[Target, list[Argument]], Estimate | None]


def estimate_call(
    function: str, overload: str, target: Target, args: list[Argument]
) -> Estimate | None:
    """The price of a call without its arguments; None: the general rule of one unit applies."""
    by_overload = _BY_OVERLOAD.get(overload) or _sort_estimator(overload)
    if by_overload is not None:
        return by_overload(target, args)
    by_function = _BY_FUNCTION.get(function)
    if by_function is not None:
        found = by_function(target, args)
        if found is not None:
            return found
    standard = _STANDARD.get(overload)
    return standard(target, args) if standard is not None else None


def _free(_target: Target, _args: list[Argument]) -> Estimate:
    return Estimate(ONE)


def _whole_number(arg: Argument, default: int) -> int:
    if isinstance(arg.node, Literal) and type(arg.node.value) is int:
        return max(arg.node.value, 0)
    return default


# --- lists of cel-go, sets ---


def _allocating(factor: float, size: Range) -> Estimate:
    return Estimate(size.scaled(factor).plus(ONE).plus(fixed(LIST_BASE)), size)


def _slice(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    start = _whole_number(args[0], 0)
    end = _whole_number(args[1], target.extent().high)
    return _allocating(1, fixed((end - start) % (MAX + 1)))


def _range(_target: Target, args: list[Argument]) -> Estimate:
    return _allocating(1, fixed(_whole_number(args[0], MAX)))


def _reverse(target: Target, _args: list[Argument]) -> Estimate | None:
    return _allocating(1, target.extent()) if target is not None else None


def _flatten(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    return _allocating(float(_whole_number(args[0], MAX)) if args else 1.0, target.extent())


def _distinct(target: Target, _args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    size = target.extent()
    return _allocating(2.0, size.times(size))


def _sort_estimator(overload: str) -> Estimator | None:
    if not overload.endswith(("_sort", "_sortByAssociatedKeys")):
        return None
    factor = 2.0 + (STRING_FACTOR if overload.startswith(("list_string", "list_bytes")) else 0)

    def estimator(target: Target, args: list[Argument]) -> Estimate | None:
        keys = args[0] if args else target
        if keys is None:
            return None
        size = keys.extent()
        return _allocating(factor, size.times(size))

    return estimator


def _sets(factor: float) -> Estimator:
    def estimator(_target: Target, args: list[Argument]) -> Estimate:
        return Estimate(args[0].extent().times(args[1].extent()).scaled(factor).plus(ONE))

    return estimator


# --- functions of Kubernetes ---


def _traversal(factor: float, *, sized: bool = False) -> Estimator:
    """Reads the first argument once, times a factor."""

    def estimator(_target: Target, args: list[Argument]) -> Estimate | None:
        if not args:
            return None
        size = args[0].extent()
        return Estimate(size.scaled(factor), size if sized else None)

    return estimator


def _target_traversal(target: Target, _args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    size = target.extent()
    return Estimate(size.scaled(STRING_FACTOR), size)


def _each_element(*, includes: bool = False) -> Estimator:
    def estimator(target: Target, _args: list[Argument]) -> Estimate | None:
        if target is None:
            return None
        size, element = target.extent(), target.element()
        if element is not None:
            per_element = ONE
            if element.type.kind in {"string", "bytes"}:
                per_element = ONE.plus(element.extent().scaled(STRING_FACTOR))
            return Estimate(size.times(per_element))
        return Estimate(size if includes else size.scaled(STRING_FACTOR))

    return estimator


def _replace(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None or len(args) < 2:
        return None
    size, old, new = target.extent(), args[0].extent(), args[1].extent()
    high_count, high_kept = _replaced(size.high, old.low, grows=new.high > old.low)
    low_count, low_kept = _replaced(size.low, old.high, grows=old.high > new.low)
    result = Range(low_count, high_count).times(new).plus(Range(low_kept, high_kept))
    return Estimate(size.scaled(2 * STRING_FACTOR), result)


def _replaced(size: int, old: int, *, grows: bool) -> tuple[int, int]:
    """How often a part of length ``old`` is replaced, and how much of the text is kept."""
    if old == 0:
        return min(size + 1, MAX), size
    if not grows:
        return 0, size
    return min(math.ceil(float(size) / float(old)), MAX), 0


def _split(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    size = target.extent()
    high = size.high
    if len(args) > 1 and isinstance(args[1].node, Literal) and type(args[1].node.value) is int:
        high = args[1].node.value % (MAX + 1)
    return Estimate(size.scaled(2 * STRING_FACTOR), Range(0, high))


def _join(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    count, element = target.extent(), target.element()
    size = count.times(element.extent()) if element is not None else Range(0, 0)
    if args:
        gaps = Range(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(args[0].extent().times(gaps))
    return Estimate(size.scaled(STRING_FACTOR), size)


def _regex_cost(text: Range, pattern: Range) -> Range:
    return text.plus(ONE).scaled(STRING_FACTOR).times(pattern.scaled(REGEX_FACTOR))


def _find(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None or not args:
        return None
    size = target.extent()
    return Estimate(_regex_cost(size, args[0].extent()), Range(0, size.high))


def _ip(target: Target, args: list[Argument]) -> Estimate | None:
    return _free(target, args) if target is not None else _traversal(STRING_FACTOR)(target, args)


def _contains_address(*, network: bool) -> Estimator:
    def estimator(_target: Target, args: list[Argument]) -> Estimate | None:
        if not args:
            return None
        address = Range(4, 16)
        cost = address.plus(address).scaled(STRING_FACTOR)
        if network:
            cost = cost.plus(address.scaled(STRING_FACTOR)).plus(ONE)
        return Estimate(cost)

    return estimator


def _with_text(plain: Estimator) -> Estimator:
    def estimator(target: Target, args: list[Argument]) -> Estimate | None:
        found = plain(target, args)
        if found is None:
            return None
        return Estimate(found.cost.plus(args[0].extent().scaled(STRING_FACTOR)))

    return estimator


def _validate(_target: Target, args: list[Argument]) -> Estimate | None:
    if not args:
        return None
    size = args[0].extent()
    return Estimate(size.scaled(STRING_FACTOR).scaled(_FORMAT_REGEX * REGEX_FACTOR))


def _equals(_target: Target, args: list[Argument]) -> Estimate | None:
    if len(args) != 2 or args[0].type != args[1].type:
        return None
    kind = args[0].type
    if kind in {QUANTITY, SEMVER} or kind.name in {"net.IP", "net.CIDR"}:
        return Estimate(ONE)
    if kind == FORMAT:
        return Estimate(Range(1, _FORMAT_SIZE).scaled(STRING_FACTOR))
    if kind == URL:
        # Upstream looks at the right side only, twice.
        size = args[1].size.union(args[1].size) if args[1].size is not None else ONE
        return Estimate(Range(1, size.high).scaled(STRING_FACTOR))
    return None


# --- the standard library ---


def _comparison(_target: Target, args: list[Argument]) -> Estimate:
    smallest = min((args[0].size or UNKNOWN).high, (args[1].size or UNKNOWN).high)
    return Estimate(Range(min(smallest, 1), smallest).scaled(STRING_FACTOR))


def _to_bytes(_target: Target, args: list[Argument]) -> Estimate:
    size = args[0].size or UNKNOWN
    # Upstream multiplies without a guard: the largest size wraps around.
    return Estimate(size.scaled(STRING_FACTOR), Range(size.low, size.high * 4 % (MAX + 1)))


def _from_bytes(_target: Target, args: list[Argument]) -> Estimate:
    size = args[0].size or UNKNOWN
    return Estimate(size.scaled(STRING_FACTOR), Range(size.low // 4, size.high))


def _quote(_target: Target, args: list[Argument]) -> Estimate:
    size = args[0].size or UNKNOWN
    result = Range((size.low + 2) % (MAX + 1), (size.high * 2 + 2) % (MAX + 1))
    return Estimate(size.scaled(STRING_FACTOR), result)


def _format(target: Target, _args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    return Estimate((target.size or UNKNOWN).scaled(STRING_FACTOR))


def _affix(_target: Target, args: list[Argument]) -> Estimate:
    return Estimate((args[0].size or UNKNOWN).scaled(STRING_FACTOR))


def _in_list(_target: Target, args: list[Argument]) -> Estimate:
    return Estimate((args[1].size or UNKNOWN).scaled(1))


def _matches(target: Target, args: list[Argument]) -> Estimate:
    text, pattern = (target, args[0]) if target is not None else (args[0], args[1])
    return Estimate(_regex_cost(text.size or UNKNOWN, pattern.size or UNKNOWN))


def _contains(target: Target, args: list[Argument]) -> Estimate | None:
    if target is None:
        return None
    text = (target.size or UNKNOWN).scaled(STRING_FACTOR)
    return Estimate(text.times((args[0].size or UNKNOWN).scaled(STRING_FACTOR)))


_BY_OVERLOAD: dict[str, Estimator] = {
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _range,
    "list_reverse": _reverse,
    "list_distinct": _distinct,
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "cidr_contains_ip_string": _with_text(_contains_address(network=False)),
    "cidr_contains_cidr_string": _with_text(_contains_address(network=True)),
}
_BY_FUNCTION: dict[str, Estimator] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _each_element()),
    "includes": _each_element(includes=True),
    "url": _traversal(STRING_FACTOR, sized=True),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _target_traversal),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    **dict.fromkeys(
        ("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"),
        _traversal(STRING_FACTOR),
    ),
    "ip": _ip,
    "ip.isCanonical": _traversal(2 * STRING_FACTOR),
    "containsIP": _contains_address(network=False),
    "containsCIDR": _contains_address(network=True),
    "validate": _validate,
    "_==_": _equals,
    "check": lambda _target, _args: Estimate(fixed(350_000)),
}
_STANDARD: dict[str, Estimator] = {
    "string_format": _format,
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _from_bytes,
    "strings_quote": _quote,
    "starts_with_string": _affix,
    "ends_with_string": _affix,
    "in_list": _in_list,
    "matches": _matches,
    "matches_string": _matches,
    "contains_string": _contains,
    **dict.fromkeys(
        [f"{name}_{kind}" for name in ("less", "less_equals", "greater", "greater_equals")
         for kind in ("string", "bytes")] + ["equals", "not_equals"],
        _comparison,
    ),
}  # fmt: skip
