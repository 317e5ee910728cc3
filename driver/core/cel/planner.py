# SPDX-License-Identifier: Apache-2.0
"""Turns a checked tree into closures that compute it.

There are two ways to plan. *Plain* closures count nothing; they are used where the worst case is
known to be far below the cost limit. *Counted* closures add up the run-time cost exactly as
cel-go does, quirks included, and stop at the limit.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
from gpudra.driver.core.cel.cost_runtime import equality_price
from gpudra.driver.core.cel.cost_sizes import LIST_BASE, MAP_BASE
from gpudra.driver.core.cel.environment import Environment
from gpudra.driver.core.cel.equality import equal, equal_value
from gpudra.driver.core.cel.errors import CelEvaluationError, CelTypeError, CelValueError
from gpudra.driver.core.cel.library.regex import compile_pattern
from gpudra.driver.core.cel.plan import Plan, Run, charge, constant, not_a_bool
from gpudra.driver.core.cel.plan_access import (
    Step,
    counted_chain,
    device_view,
    direct,
    is_device,
    plain_chain,
    presence,
    unchain,
)
from gpudra.driver.core.cel.plan_calls import (
    counted_call,
    not_equal,
    plain_call,
    plain_equality,
    price_of,
    routine,
)
from gpudra.driver.core.cel.plan_logic import both, many, terms_of
from gpudra.driver.core.cel.plan_loops import Loop, plan_loop
from gpudra.driver.core.cel.values import UNHASHABLE, MapValue, Optional, Uint, Value, unhashable

_UNSET = object()
_CONVERSIONS = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
_REGEX = frozenset({"matches", "find", "findAll"})
_ACCESS = frozenset({"_[_]", "_[?_]", "_?._"})
_PRIMITIVE = (bool, int, Uint, float, str)


class Program(NamedTuple):
    """A plan of a whole expression, and how many variables its frame needs."""

    run: Run
    variables: int


def plan(expression: str, root: Node, environment: Environment, *, counted: bool) -> Program:
    """Plans a checked tree.

    Raises:
        CelTypeError: a constant part can never work (a conversion, a pattern, a key).
    """
    planner = _Planner(expression, environment, counted=counted)
    planned = planner.plan(root)
    return Program(planned.run, planner.variables)


class _Planner:
    def __init__(self, expression: str, environment: Environment, *, counted: bool) -> None:
        self.expression = expression
        self.environment = environment
        self.counted = counted
        self.variables = 0
        self.scopes: list[tuple[str, Run]] = []

    def error(self, what: str, node: Node, hint: str = "") -> CelTypeError:
        return CelTypeError(what, expression=self.expression, offset=node.pos, hint=hint)

    def plan(self, node: Node) -> Plan:
        return _PLANS[type(node)](self, node)

    def raw(self, node: Node) -> Plan:
        """A plan without the unit that a name or chain costs by itself.

        The branches of ``?:`` and a name used as an index are resolved that way in cel-go.
        """
        if self.counted:
            if isinstance(node, Ident) and node.value is None:
                return Plan(self.variable(node))
            if isinstance(node, Select | Call) and self.is_access(node):
                return self.access(node, raw=True)
        return self.plan(node)

    def is_access(self, node: Node) -> bool:
        if isinstance(node, Select):
            return node.value is None
        return isinstance(node, Call) and node.function in _ACCESS

    # --- names and chains ---

    def literal(self, node: Node) -> Plan:
        assert isinstance(node, Literal)
        return constant(node.value)

    def ident(self, node: Node) -> Plan:
        assert isinstance(node, Ident)
        if node.value is not None:
            return constant(node.value)
        if node.type.kind == "type":
            raise self.untypable(node)
        run = self.variable(node)
        return Plan(self.priced(run, 1) if self.counted else run)

    def untypable(self, node: Node) -> CelTypeError:
        return self.error(
            "a variable cannot hold a type (Kubernetes refuses it, too)",
            node,
            "write the type's name",
        )

    def variable(self, node: Ident) -> Run:
        for name, run in reversed(self.scopes):
            if name == node.name:
                return run
        return device_view

    def new_slot(self) -> int:
        self.variables += 1
        return self.variables - 1

    def priced(self, run: Run, cost: int) -> Run:
        def priced(frame: Any) -> Value:
            frame.cost += cost
            return run(frame)

        return priced

    def select(self, node: Node) -> Plan:
        assert isinstance(node, Select)
        return constant(node.value) if node.value is not None else self.access(node)

    def access(self, node: Node, *, raw: bool = False) -> Plan:
        test = isinstance(node, Select) and node.test
        base_node, found = unchain(node)
        is_variable = isinstance(base_node, Ident) and base_node.value is None
        base = self.raw(base_node) if is_variable else self.plan(base_node)
        steps = [self.step(*parts) for parts in found]
        if not self.counted:
            return Plan(self.plain_access(base_node, base, steps, test=test))
        conditional = isinstance(base_node, Call) and base_node.function == "_?_:_"
        extra = 0 if raw or test or conditional else 1
        # Upstream loses count behind the leading dot that reaches past a variable called device.
        unit = 0 if isinstance(base_node, Ident) and base_node.name == ".device" else 1
        return Plan(counted_chain(base.run, steps, (extra, unit), test=test))

    def step(self, node: Node, key: Value, index: Node | None, optional: bool) -> Step:
        if index is not None:
            planned = self.raw(index)
            if not planned.constant:
                return Step(node, None, planned.run, optional)
            key = planned.value
        if type(key) not in _PRIMITIVE:
            raise self.error(f"a {type(key).__name__} cannot be a key", node, "use a string")
        return Step(node, key, None, optional)

    def plain_access(self, base_node: Node, base: Plan, steps: list[Step], *, test: bool) -> Run:
        if not is_device(base_node) or self.is_shadowed(base_node):
            return (presence if test else plain_chain)(base.run, steps)
        if test:
            holder = direct(steps[:-1]) if len(steps) > 1 else None
            return presence(holder or base.run, steps[-1:] if holder else steps)
        for length in range(min(3, len(steps)), 0, -1):
            run = direct(steps[:length])
            if run is not None:
                rest = steps[length:]
                return plain_chain(run, rest) if rest else run
        return plain_chain(base.run, steps)

    def is_shadowed(self, node: Node) -> bool:
        return isinstance(node, Ident) and any(name == node.name for name, _ in self.scopes)

    # --- calls ---

    def call(self, node: Node) -> Plan:
        assert isinstance(node, Call)
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(self, node)
        plans = [self.plan(operand) for operand in node.operands()]
        function = self.environment.functions[node.function]
        impl = routine(node, function)
        if node.function in _CONVERSIONS and len(plans) == 1 and plans[0].constant:
            return self.folded(node, lambda: impl(plans[0].value))
        if node.function in _REGEX:
            self.check_pattern(node, plans)
        if node.overloads == ("in_list",):
            folded = self.membership(plans)
            if folded is not None:
                return folded
        if not self.counted:
            return plain_call(node, impl, plans)
        return Plan(
            counted_call(
                [planned.run for planned in plans],
                impl,
                price_of(node),
                stops_early=len(plans) > 2
                or node.function == "format"
                or self.is_pattern(node, plans),
            )
        )

    def folded(self, node: Node, compute: Callable[[], Value]) -> Plan:
        try:
            return constant(compute())
        except CelEvaluationError as error:
            raise self.error(error.what, node, error.hint) from error

    def is_pattern(self, node: Call, plans: Sequence[Plan]) -> bool:
        return node.function in _REGEX and plans[1].constant

    def check_pattern(self, node: Call, plans: Sequence[Plan]) -> None:
        if self.is_pattern(node, plans) and type(plans[1].value) is str:
            try:
                compile_pattern(plans[1].value)
            except CelValueError as error:
                raise self.error(error.what, node.operands()[1], error.hint) from error

    def membership(self, plans: Sequence[Plan]) -> Plan | None:
        """``x in [literals]`` as a test of a set, free of charge as in cel-go."""
        needle, holder = plans
        if not holder.constant:
            return None
        items = holder.value
        if not items:
            return constant(value=False)
        if not all(type(item) in _PRIMITIVE for item in items):
            return None
        find = needle.run
        texts = frozenset(item for item in items if type(item) is str)
        others = tuple(item for item in items if type(item) is not str)

        def run(frame: Any) -> Value:
            value = find(frame)
            if type(value) is str:
                return value in texts
            if type(value) in UNHASHABLE:
                raise unhashable(value)
            return value is not None and any(_same_primitive(value, item) for item in others)

        return Plan(run)

    def equality(self, node: Call) -> Plan:
        plans = [self.plan(arg) for arg in node.args]
        if not self.counted:
            return plain_equality(node, plans)
        negative = node.function == "_!=_"
        runs = [planned.run for planned in plans]
        price = price_of(node) if negative else equality_price
        return Plan(counted_call(runs, not_equal if negative else equal, price, stops_early=False))

    def logic(self, node: Call) -> Plan:
        """``&&`` and ``||``: the first decisive operand wins, errors before it are absorbed."""
        runs = [self.plan(term).run for term in terms_of(node)]
        decisive = node.function == "_||_"
        symbol = "||" if decisive else "&&"
        return Plan(
            both(runs, decisive, symbol) if len(runs) == 2 else many(runs, decisive, symbol)
        )

    def conditional(self, node: Call) -> Plan:
        test = self.plan(node.args[0]).run
        then, other = self.raw(node.args[1]).run, self.raw(node.args[2]).run

        def run(frame: Any) -> Value:
            answer = test(frame)
            if answer is True:
                return then(frame)
            if answer is False:
                return other(frame)
            raise not_a_bool(answer, "?:")

        return Plan(run)

    def fallback(self, node: Call) -> Plan:
        """``or`` and ``orValue``, whose argument is computed only if it is needed."""
        assert node.target is not None
        first, second = self.plan(node.target).run, self.plan(node.args[0]).run
        unwrap = node.function == "orValue"

        def run(frame: Any) -> Value:
            value = first(frame)
            if type(value) is not Optional:
                raise CelValueError(f"{node.function}() wants an optional value")
            if not value.present:
                return second(frame)
            return value.value if unwrap else value

        return Plan(run)

    # --- literals of several elements ---

    def list_literal(self, node: Node) -> Plan:
        assert isinstance(node, ListNode)
        plans = [self.plan(element) for element in node.elements]
        if all(item.constant for item in plans) and not node.optional:
            return constant(tuple(item.value for item in plans))
        parts = [(item.run, index in node.optional) for index, item in enumerate(plans)]

        def build(frame: Any) -> Value:
            values: list[Value] = []
            for run, optional in parts:
                value = run(frame)
                if optional:
                    present, value = _unwrap(value)
                    if not present:
                        continue
                values.append(value)
            return tuple(values)

        return self.literal_of_parts(build, LIST_BASE, plans, optional=bool(node.optional))

    def literal_of_parts(
        self, build: Run, price: int, plans: Sequence[Plan], *, optional: bool
    ) -> Plan:
        if self.counted:

            def counted(frame: Any) -> Value:
                charge(frame, price)
                return build(frame)

            return Plan(counted)
        if not optional and all(item.known for item in plans):
            value = build(None)
            return Plan(lambda _frame: value, known=True, value=value)
        return Plan(build)

    def map_literal(self, node: Node) -> Plan:
        assert isinstance(node, MapNode)
        keys = [self.plan(key) for key, _, _ in node.entries]
        values = [self.plan(value) for _, value, _ in node.entries]
        optional = any(entry[2] for entry in node.entries)
        parts = [
            (key.run, value.run, entry[2])
            for key, value, entry in zip(keys, values, node.entries, strict=True)
        ]

        def build(frame: Any) -> Value:
            result = MapValue()
            for key_run, value_run, is_optional in parts:
                key, value = key_run(frame), value_run(frame)
                if is_optional:
                    present, value = _unwrap(value)
                    if not present:
                        result.discard(key)
                        continue
                result.insert(key, value)
            return result

        if all(item.constant for item in (*keys, *values)) and not optional:
            return self.folded(node, lambda: build(None))
        return self.literal_of_parts(build, MAP_BASE, [], optional=True)

    # --- loops ---

    def comprehension(self, node: Node) -> Plan:
        assert isinstance(node, Comprehension)
        if node.kind == "bind":
            return self.bind(node)
        if node.kind == "transform_map" and node.key().type.kind == "type":
            raise self.untypable(node)
        over = self.plan(node.iter_range).run
        slot = self.new_slot()
        slot2 = self.new_slot() if node.iter_var2 else -1
        depth = len(self.scopes)
        self.scopes.append((node.iter_var, _reader(slot)))
        if node.iter_var2:
            self.scopes.append((node.iter_var2, _reader(slot2)))
        predicate = self.plan(node.predicate) if node.predicate is not None else None
        transform = self.plan(node.transform) if node.transform is not None else None
        del self.scopes[depth:]
        return Plan(
            plan_loop(
                Loop(
                    kind=node.kind,
                    over=over,
                    slot=slot,
                    slot2=slot2,
                    predicate=predicate.run if predicate is not None else None,
                    transform=transform.run if transform is not None else None,
                    constant_transform=transform is not None and transform.constant,
                    counted=self.counted,
                )
            )
        )

    def bind(self, node: Comprehension) -> Plan:
        """A named value, computed at its first use and then kept, also if it is an error."""
        if node.accu_init.type.kind == "type":
            raise self.untypable(node)
        compute, slot = self.plan(node.accu_init).run, self.new_slot()

        def read(frame: Any) -> Value:
            value = frame.variables[slot]
            if value is _UNSET:
                try:
                    value = compute(frame)
                except CelValueError as error:
                    frame.variables[slot] = error
                    raise
                frame.variables[slot] = value
            elif isinstance(value, CelValueError):
                raise value
            return value

        self.scopes.append((node.accu_var, read))
        result = self.plan(node.result).run
        self.scopes.pop()

        def run(frame: Any) -> Value:
            frame.variables[slot] = _UNSET
            return result(frame)

        return Plan(run)


def _reader(slot: int) -> Run:
    return lambda frame: frame.variables[slot]


def _unwrap(value: Value) -> tuple[bool, Value]:
    if type(value) is not Optional:
        raise CelValueError("'?' wants an optional value")
    return value.present, value.value


def _same_primitive(left: Value, right: Value) -> bool:
    try:
        return equal_value(left, right)
    except CelValueError:
        return False


_SPECIAL: dict[str, Callable[[_Planner, Call], Plan]] = {
    "_&&_": _Planner.logic,
    "_||_": _Planner.logic,
    "_?_:_": _Planner.conditional,
    "_==_": _Planner.equality,
    "_!=_": _Planner.equality,
    "_[_]": _Planner.access,
    "_[?_]": _Planner.access,
    "_?._": _Planner.access,
    "or": _Planner.fallback,
    "orValue": _Planner.fallback,
}
_PLANS: dict[type[Node], Callable[[_Planner, Node], Plan]] = {
    Literal: _Planner.literal,
    Ident: _Planner.ident,
    Select: _Planner.select,
    Call: _Planner.call,
    ListNode: _Planner.list_literal,
    MapNode: _Planner.map_literal,
    Comprehension: _Planner.comprehension,
}
