# SPDX-License-Identifier: Apache-2.0
"""Worst-case cost of an expression before it runs.

The API server refuses selectors whose estimate exceeds 1,000,000 (resource.k8s.io/v1,
CELSelectorExpressionMaxCost). The walk follows cel-go's checker/cost.go, so that both come to the
same number; the prices of functions are in ``cost_functions``.
"""

from collections.abc import Callable

from gpudra.driver.core.cel.ast import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
)
from gpudra.driver.core.cel.cost_functions import Argument, estimate_call
from gpudra.driver.core.cel.cost_sizes import (
    LIST_BASE,
    MAP_BASE,
    MAX,
    NOTHING,
    ONE,
    STRING_FACTOR,
    UNKNOWN,
    Estimate,
    Range,
    fixed,
)
from gpudra.driver.core.cel.environment import MAX_DOMAIN, MAX_DRIVER, MAX_ID, MAX_NAMES, MAX_VALUE
from gpudra.driver.core.cel.types import Type

Path = tuple[str, ...]
# Kind of a container, and the sizes of its keys and values.
Entries = tuple[str, Range, Range]

_SCALARS = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
# How large a value of ``device`` may be, by its path; "*" stands for any attribute's name.
_DEVICE_SIZES: dict[Path, int] = {
    ("device",): 0,
    ("device", "driver"): MAX_DRIVER,
    ("device", "allowMultipleAllocations"): 1,
    **{
        ("device", field, *rest): size
        for field in ("attributes", "capacity")
        for rest, size in (
            ((), MAX_NAMES),
            (("@keys",), MAX_DOMAIN),
            (("@values",), MAX_NAMES),
            (("@items",), MAX_NAMES),
            (("@values", "@keys"), MAX_ID),
            (("@items", "@keys"), MAX_ID),
        )
    },
    **{
        ("device", field, outer, inner): size
        for field, size in (("attributes", MAX_VALUE), ("capacity", 0))
        for outer in ("@values", "@items")
        for inner in ("@values", "@items")
    },
}


def estimate(root: Node) -> int:
    """The worst-case cost of a checked tree, at most 2^64-1."""
    return _Coster().cost(root).high


class _Local:
    __slots__ = ("entries", "path", "size")

    def __init__(self, path: Path, size: Range | None, entries: Entries | None) -> None:
        self.path, self.size, self.entries = path, size, entries


class _Coster:
    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.sizes: dict[int, Range] = {}
        self.entries: dict[int, Entries] = {}
        self.locals: dict[str, list[_Local]] = {}

    def cost(self, node: Node) -> Range:
        if isinstance(node, Ident | Select) and node.value is not None:
            self.paths[id(node)] = tuple(_name(node).split("."))
            return ONE
        return _COSTS[type(node)](self, node)

    def literal(self, _node: Node) -> Range:
        return NOTHING

    # --- names ---

    def peek(self, node: Node) -> _Local | None:
        stack = self.locals.get(node.name) if isinstance(node, Ident) else None
        return stack[-1] if stack else None

    def path(self, node: Node) -> Path:
        local = self.peek(node)
        return local.path if local is not None else self.paths.get(id(node), ())

    def ident(self, node: Node) -> Range:
        assert isinstance(node, Ident)
        local = self.peek(node)
        self.paths[id(node)] = local.path if local is not None else (node.name,)
        return ONE

    def select(self, node: Node) -> Range:
        assert isinstance(node, Select)
        total = self.cost(node.operand)
        if node.test:
            return total
        if node.operand.type.kind in {"map", "struct", "param"}:
            total = total.plus(ONE)
        self.paths[id(node)] = (*self.path(node.operand), node.field)
        return total

    # --- sizes ---

    def size(self, node: Node) -> Range | None:
        known = self.sizes.get(id(node)) or _literal_size(node)
        if known is not None:
            return known
        known = device_size(self.path(node))
        if known is not None:
            self.sizes[id(node)] = known
            return known
        if _is_scalar(node.type):
            return ONE
        local = self.peek(node)
        return local.size if local is not None else None

    def size_or_unknown(self, node: Node) -> Range:
        return self.size(node) or UNKNOWN

    def set_size(self, node: Node, size: Range | None) -> None:
        if size is not None:
            self.sizes[id(node)] = size

    def entry_size(self, node: Node) -> Entries | None:
        known = self.entries.get(id(node))
        if known is not None:
            return known
        local = self.peek(node)
        return local.entries if local is not None else None

    def argument(self, node: Node) -> Argument:
        path = self.path(node)
        if path and path[0] in {"@result", "__result__"}:
            path = ()
        return Argument(node, node.type, path, self.size(node), device_size)

    # --- calls ---

    def call(self, node: Node) -> Range:
        assert isinstance(node, Call)
        if node.function == "dyn":
            cost = self.cost(node.args[0]).plus(ONE)
            self.set_size(node, self.size(node.args[0]))
            self.set_entries(node, self.entry_size(node.args[0]))
            return cost
        costs, arguments = [], []
        for arg in node.args:
            costs.append(self.cost(arg))
            arguments.append(self.argument(arg))
        total, target = NOTHING, None
        if node.target is not None:
            total = self.cost(node.target)
            target = self.argument(node.target)
        call_cost, size = Range(MAX, 0), None
        for overload in node.overloads:
            found = self.overload(node, overload, target, arguments, costs)
            call_cost = call_cost.union(found.cost)
            if found.size is not None:
                size = found.size if size is None else size.union(found.size)
            if overload in {"index_list", "index_map"}:
                size = self.indexed(node, overload)
            if size is None:
                size = self.size(node)
        self.set_size(node, size)
        return total.plus(call_cost)

    def indexed(self, node: Call, overload: str) -> Range | None:
        step = "@items" if overload == "index_list" else "@values"
        self.paths[id(node)] = (*self.path(node.args[0]), step)
        entries = self.entry_size(node.args[0])
        return entries[2] if entries is not None else None

    def overload(
        self,
        node: Call,
        overload: str,
        target: Argument | None,
        arguments: list[Argument],
        costs: list[Range],
    ) -> Estimate:
        total = NOTHING
        for cost in costs:
            total = total.plus(cost)
        found = estimate_call(node.function, overload, target, arguments)
        if found is not None:
            return Estimate(found.cost.plus(total), found.size)
        if overload in {"logical_or", "logical_and"}:
            return Estimate(Range(costs[0].low, costs[0].plus(costs[1]).high))
        if overload == "conditional":
            return self.conditional(node, arguments, costs)
        if overload in {"add_string", "add_bytes", "add_list"}:
            return self.concatenation(node, overload, arguments, total)
        return Estimate(ONE.plus(total))

    def conditional(self, node: Call, arguments: list[Argument], costs: list[Range]) -> Estimate:
        size = (arguments[1].size or UNKNOWN).union(arguments[2].size or UNKNOWN)
        first, second = self.entry_size(node.args[1]), self.entry_size(node.args[2])
        self.set_entries(node, _joined(first, second))
        return Estimate(costs[0].plus(costs[1].union(costs[2])), size)

    def concatenation(
        self, node: Call, overload: str, arguments: list[Argument], total: Range
    ) -> Estimate:
        size = (arguments[0].size or UNKNOWN).plus(arguments[1].size or UNKNOWN)
        first, second = self.entry_size(node.args[0]), self.entry_size(node.args[1])
        self.set_entries(node, _joined(first, second))
        cost = ONE if overload == "add_list" else size.scaled(STRING_FACTOR)
        return Estimate(cost.plus(total), size)

    def set_entries(self, node: Node, entries: Entries | None) -> None:
        if entries is not None:
            self.entries[id(node)] = entries

    # --- literals and loops ---

    def list_literal(self, node: Node) -> Range:
        assert isinstance(node, ListNode)
        total, items = NOTHING, Range(MAX if node.elements else 0, 0)
        for element in node.elements:
            total = total.plus(self.cost(element))
            items = items.union(self.size_or_unknown(element))
        self.entries[id(node)] = ("list", ONE, items)
        return total.plus(fixed(LIST_BASE))

    def map_literal(self, node: Node) -> Range:
        assert isinstance(node, MapNode)
        low = MAX if node.entries else 0
        total, keys, values = NOTHING, Range(low, 0), Range(low, 0)
        for key, value, _ in node.entries:
            total = total.plus(self.cost(key)).plus(self.cost(value))
            keys = keys.union(self.size_or_unknown(key))
            values = values.union(self.size_or_unknown(value))
        self.entries[id(node)] = ("map", keys, values)
        return total.plus(fixed(MAP_BASE))

    def comprehension(self, node: Node) -> Range:
        assert isinstance(node, Comprehension)
        total = self.cost(node.iter_range).plus(self.cost(node.accu_init))
        accu = _Local(
            self.path(node.accu_init), self.size(node.accu_init), self.entry_size(node.accu_init)
        )
        self.locals.setdefault(node.accu_var, []).append(accu)
        if node.kind == "bind":
            total = total.plus(self.cost(node.result))
            self.locals[node.accu_var].pop()
            self.set_size(node, self.size(node.result))
            self.set_entries(node, self.entry_size(node.result))
            return total
        variables = self.push_variables(node)
        per_step = self.cost(node.condition).plus(self.cost(node.step))
        for name in variables:
            self.locals[name].pop()
        total = total.plus(self.cost(node.result))
        self.locals[node.accu_var].pop()
        count = self.size_or_unknown(node.iter_range)
        self.loop_size(node, count)
        return total.plus(count.times(per_step))

    def loop_size(self, node: Comprehension, count: Range) -> None:
        if isinstance(node.accu_init, Literal):
            self.set_size(node, self.size(node.accu_init))
        else:
            self.set_size(node, count)
            self.set_entries(node, self.entry_size(node.step))

    def push_variables(self, node: Comprehension) -> list[str]:
        entries = self.entry_size(node.iter_range)
        container = entries[0] if entries is not None else node.iter_range.type.kind
        keys, values = (entries[1], entries[2]) if entries is not None else (None, None)
        is_list = container == "list"
        path = self.path(node.iter_range)
        if node.iter_var2:
            pushed = [
                (node.iter_var, "@indices" if is_list else "@keys", keys),
                (node.iter_var2, "@items" if is_list else "@values", values),
            ]
        else:
            pushed = [
                (node.iter_var, "@items", values) if is_list else (node.iter_var, "@keys", keys)
            ]
        for name, step, size in pushed:
            self.locals.setdefault(name, []).append(_Local((*path, step), size, None))
        return [name for name, _, _ in pushed]


def device_size(path: Path) -> Range | None:
    """How large the part of the device at this path may be; None if the path leads elsewhere."""
    size = _DEVICE_SIZES.get(path)
    if size is None and len(path) == 4 and path[:3] in _ATTRIBUTE_MAPS and path[3][0] != "@":
        size = MAX_VALUE
    return Range(0, size) if size is not None else None


_ATTRIBUTE_MAPS = frozenset(
    {("device", "attributes", "@values"), ("device", "attributes", "@items")}
)


def _joined(first: Entries | None, second: Entries | None) -> Entries | None:
    if first is None or second is None:
        return None
    return first[0], first[1].union(second[1]), first[2].union(second[2])


def _literal_size(node: Node) -> Range | None:
    if isinstance(node, Literal):
        return fixed(len(node.value) if isinstance(node.value, str | bytes) else 1)
    if isinstance(node, ListNode):
        return fixed(len(node.elements))
    if isinstance(node, MapNode):
        return fixed(len(node.entries))
    return None


def _is_scalar(kind: Type) -> bool:
    if kind.kind == "opaque" and kind.name == "optional_type":
        return _is_scalar(kind.params[0])
    return kind.kind in _SCALARS


def _name(node: Ident | Select) -> str:
    return str(getattr(node.value, "name", ""))


_COSTS: dict[type[Node], Callable[[_Coster, Node], Range]] = {
    Literal: _Coster.literal,
    Ident: _Coster.ident,
    Select: _Coster.select,
    Call: _Coster.call,
    ListNode: _Coster.list_literal,
    MapNode: _Coster.map_literal,
    Comprehension: _Coster.comprehension,
}
