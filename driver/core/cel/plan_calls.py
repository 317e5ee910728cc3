# SPDX-License-Identifier: Apache-2.0
"""Plans for function calls: which routine runs, with which tests of its arguments, at what price."""

from collections.abc import Callable, Sequence
from typing import Any

from gpudra.driver.core.cel.ast import Call, Node
from gpudra.driver.core.cel.cost_runtime import FAILED, Price, call_price
from gpudra.driver.core.cel.declarations import Function, Guard, Impl, Overload
from gpudra.driver.core.cel.equality import equal
from gpudra.driver.core.cel.errors import CelEvaluationError, CelValueError, no_overload
from gpudra.driver.core.cel.plan import Plan, Run, charge
from gpudra.driver.core.cel.plan_access import is_device, unchain
from gpudra.driver.core.cel.types import Type
from gpudra.driver.core.cel.values import Value

# Operators on values whose static types leave no doubt.
_DIRECT: dict[str, Callable[[Run, Run], Run]] = {
    "less": lambda a, b: lambda f: a(f) < b(f),
    "less_equals": lambda a, b: lambda f: a(f) <= b(f),
    "greater": lambda a, b: lambda f: a(f) > b(f),
    "greater_equals": lambda a, b: lambda f: a(f) >= b(f),
}
_DIRECT_CONST: dict[str, Callable[[Run, Value], Run]] = {
    "less": lambda a, b: lambda f: a(f) < b,
    "less_equals": lambda a, b: lambda f: a(f) <= b,
    "greater": lambda a, b: lambda f: a(f) > b,
    "greater_equals": lambda a, b: lambda f: a(f) >= b,
}
_NULLABLE = frozenset({"struct", "opaque", "duration", "timestamp"})
_MAKERS = frozenset({"quantity", "semver", "ip", "cidr", "url", "duration", "timestamp", "masked"})
_DIRECT_KINDS = ("_int64", "_string")


def routine(node: Call, function: Function) -> Impl:
    """What computes the call from its values, testing their types where the checker could not."""
    if function.single is not None:
        return function.single
    if len(node.overloads) == 1:
        chosen = next(item for item in function.overloads if item.id == node.overloads[0])
        return _guarded(node, chosen)
    return _dispatch(function, len(node.operands()))


def _guarded(node: Call, overload: Overload) -> Impl:
    assert overload.impl is not None, f"{overload.id} is planned elsewhere"
    impl, name = overload.impl, node.function
    guards: list[tuple[int, Guard]] = [
        (position, guard)
        for position, (operand, wanted, guard) in enumerate(
            zip(node.operands(), overload.args, overload.guards, strict=True)
        )
        if guard is not None and not _surely(operand, wanted)
    ]
    if not guards:
        return impl

    def run(*args: Value) -> Value:
        for position, guard in guards:
            if not guard(args[position]):
                raise no_overload(name, *args)
        return impl(*args)

    return run


def _surely(operand: Node, wanted: Type) -> bool:
    """Whether a value of the operand cannot but be of the wanted type.

    The checker lets null stand for messages and the like, so a type among ``_NULLABLE`` is certain
    only where it comes straight from a function that makes it, or from the device's capacity.
    """
    if operand.type != wanted:
        return False
    if wanted.kind not in _NULLABLE:
        return True
    if isinstance(operand, Call) and operand.function in _MAKERS:
        return True
    base, steps = unchain(operand)
    return is_device(base) and not any(optional for _, _, _, optional in steps)


def _dispatch(function: Function, count: int) -> Impl:
    candidates = [
        item for item in function.overloads if item.impl is not None and len(item.args) == count
    ]
    name = function.name

    def run(*args: Value) -> Value:
        for item in candidates:
            if item.accepts(args):
                assert item.impl is not None
                return item.impl(*args)
        raise no_overload(name, *args)

    return run


def plain_call(node: Call, impl: Impl, plans: Sequence[Plan]) -> Plan:
    """A call without counting cost; folded if all its arguments are known."""
    if all(plan.known for plan in plans):
        try:
            value = impl(*(plan.value for plan in plans))
        except CelEvaluationError:
            pass  # the error belongs to the evaluation, where && and || may absorb it
        else:
            return Plan(lambda _frame: value, known=True, value=value)
    fast = _direct_comparison(node, plans)
    return Plan(fast if fast is not None else _apply(impl, plans))


def _direct_comparison(node: Call, plans: Sequence[Plan]) -> Run | None:
    if len(node.overloads) != 1 or not node.overloads[0].endswith(_DIRECT_KINDS):
        return None
    name = node.overloads[0].rpartition("_")[0]
    if name not in _DIRECT or node.args[0].type != node.args[1].type:
        return None
    if plans[1].known:
        return _DIRECT_CONST[name](plans[0].run, plans[1].value)
    return _DIRECT[name](plans[0].run, plans[1].run)


def _apply(impl: Impl, plans: Sequence[Plan]) -> Run:
    runs = [plan.run for plan in plans]
    if len(runs) == 1:
        first = runs[0]
        return lambda frame: impl(first(frame))
    if len(runs) == 2:
        first, second = runs
        if plans[1].known:
            value = plans[1].value
            return lambda frame: impl(first(frame), value)
        return lambda frame: impl(first(frame), second(frame))
    return lambda frame: impl(*[run(frame) for run in runs])


def counted_call(runs: Sequence[Run], impl: Impl, price: Price, *, stops_early: bool) -> Run:
    """A call that adds its price.

    With ``stops_early`` the first argument that fails ends the call, free of charge unless it is the
    last one; otherwise all arguments are computed and the price is due even if one failed. Both
    are cel-go's ways.
    """
    last = len(runs) - 1

    def run(frame: Any) -> Value:
        values: list[Value] = []
        failure: CelValueError | None = None
        for position, argument in enumerate(runs):
            try:
                values.append(argument(frame))
            except CelValueError as error:
                if stops_early and position < last:
                    raise
                failure = failure or error
                values.append(FAILED)
        result: Value = FAILED
        if failure is None:
            try:
                result = impl(*values)
            except CelValueError as error:
                failure = error
        charge(frame, price if isinstance(price, int) else price(values, result))
        if failure is not None:
            raise failure
        return result

    return run


def price_of(node: Call) -> Price:
    """The price of a call as the checker resolved it."""
    return call_price(node.function, node.overloads[0] if len(node.overloads) == 1 else "")


def plain_equality(node: Call, plans: Sequence[Plan]) -> Plan:
    """``==`` and ``!=`` without counting cost."""
    left, right = plans
    relation = not_equal if node.function == "_!=_" else equal
    if left.known and right.known:
        return plain_call(node, relation, plans)
    a, b = left.run, right.run
    if type(right.value) is str and right.known:
        return Plan(_text_relation(relation, node.args[0], a, right.value))
    if type(left.value) is str and left.known and node.args[1].type.kind == "string":
        # Only among strings: otherwise the left side decides what may be compared.
        return Plan(_text_relation(relation, node.args[1], b, left.value))
    return Plan(lambda frame: relation(a(frame), b(frame)))


def _text_relation(relation: Impl, operand: Node, run: Run, text: str) -> Run:
    """Comparison with a literal string, by far the most common one."""
    if operand.type.kind == "string":
        if relation is equal:
            return lambda frame: run(frame) == text
        return lambda frame: run(frame) != text
    wanted = relation is equal

    def compare(frame: Any) -> Value:
        found = run(frame)
        return (found == text) is wanted if type(found) is str else relation(found, text)

    return compare


def not_equal(left: Value, right: Value) -> bool:
    """``!=``: true also where the values cannot be compared, as upstream."""
    try:
        return not equal(left, right)
    except CelValueError:
        return True
