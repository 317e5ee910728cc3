# SPDX-License-Identifier: Apache-2.0
"""Which facts of a device an expression can see.

Two devices that agree on these facts get one verdict, and two nodes that agree on them share one
answer, although every device has a uuid of its own. What cannot be told from the text counts as
"everything", which is always safe.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpudra.driver.core.cel import ast

_INDEX = {"_[_]", "_[?_]"}
_SELECT_OPTIONAL = "_?._"
_TABLES = {"attributes", "capacity"}


@dataclass(frozen=True, slots=True)
class Reads:
    """Facts by qualified name.

    Attributes:
        attributes: (domain, identifier) of each attribute that can be seen.
        capacity: the same for capacities.
        everything: the expression uses the device in a way that cannot be told.
    """

    attributes: frozenset[tuple[str, str]] = frozenset()
    capacity: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.attributes | other.attributes,
            self.capacity | other.capacity,
            self.everything or other.everything,
        )


def reads_of(root: ast.Node) -> Reads:
    """What an expression can see of a device."""
    found: dict[str, set[tuple[str, str]]] = {table: set() for table in _TABLES}
    everything = not _walk(root, found)
    return Reads(frozenset(found["attributes"]), frozenset(found["capacity"]), everything)


def _walk(node: ast.Node, found: dict[str, set[tuple[str, str]]]) -> bool:
    """Collects what ``node`` reads; False if something about it cannot be told."""
    path = _device_path(node)
    if path is not None:
        if len(path) == 1 and path[0] in {"driver", "allowMultipleAllocations"}:
            return True
        if len(path) != 3 or path[0] not in _TABLES:
            return False
        found[path[0]].add((path[1], path[2]))
        return True
    if isinstance(node, ast.Ident):
        return node.name != "device"
    member = _membership(node)
    if member is not None:
        found[member[0]].add((member[1], member[2]))
        return True
    return all(_walk(child, found) for child in _children(node))


def _device_path(node: ast.Node) -> tuple[str, ...] | None:
    """``device.attributes["d"].x`` as (attributes, d, x); None for anything else."""
    if isinstance(node, ast.Ident):
        return () if node.name == "device" else None
    if isinstance(node, ast.Select):
        base, key = node.operand, node.field
    elif isinstance(node, ast.Call) and _is_lookup(node):
        operands = node.operands()
        literal = operands[1]
        if not isinstance(literal, ast.Literal) or not isinstance(literal.value, str):
            return None
        base, key = operands[0], literal.value
    else:
        return None
    path = _device_path(base)
    return None if path is None else (*path, key)


def _is_lookup(node: ast.Call) -> bool:
    return (node.function in _INDEX or node.function == _SELECT_OPTIONAL) and len(
        node.operands()
    ) == 2


def _membership(node: ast.Node) -> tuple[str, str, str] | None:
    """``"x" in device.attributes["d"]`` as (attributes, d, x)."""
    if not isinstance(node, ast.Call) or node.function not in {"@in", "_in_"}:
        return None
    key, holder = node.operands()
    path = _device_path(holder)
    if path is None or len(path) != 2 or path[0] not in _TABLES:
        return None
    if not isinstance(key, ast.Literal) or not isinstance(key.value, str):
        return None
    return path[0], path[1], key.value


def _children(node: ast.Node) -> Iterator[ast.Node]:
    if isinstance(node, ast.Select):
        yield node.operand
    elif isinstance(node, ast.Call):
        yield from node.operands()
    elif isinstance(node, ast.ListNode):
        yield from node.elements
    elif isinstance(node, ast.MapNode):
        for key, value, _ in node.entries:
            yield key
            yield value
    elif isinstance(node, ast.Comprehension):
        yield from (node.iter_range, node.accu_init, node.condition, node.step, node.result)
