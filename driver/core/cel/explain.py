# SPDX-License-Identifier: Apache-2.0
"""Why a selector says what it says: each clause, its value, and the values it read."""

from collections.abc import Sequence
from typing import NamedTuple

from gpudra.driver.core.cel.ast import Call, Comprehension, Ident, Node, Select
from gpudra.driver.core.cel.device import CelDevice, Frame
from gpudra.driver.core.cel.environment import Environment
from gpudra.driver.core.cel.errors import CelEvaluationError, CelTypeError
from gpudra.driver.core.cel.parser import Clause
from gpudra.driver.core.cel.plan_access import is_device, unchain
from gpudra.driver.core.cel.planner import plan
from gpudra.driver.core.cel.validators import children
from gpudra.driver.core.cel.values import Value

_LIMIT = 1_000_000
_MOST_OPERANDS = 16


class Explanation(NamedTuple):
    """One clause.

    Attributes:
        clause: its text.
        result: its value, or the error.
        operands: what it read from the device: pairs of text and value (or error).
    """

    clause: str
    result: Value | CelEvaluationError
    operands: tuple[tuple[str, Value | CelEvaluationError], ...]


def explain(
    expression: str, clauses: Sequence[Clause], environment: Environment, device: CelDevice
) -> list[Explanation]:
    """Evaluates clause by clause; the tree is already checked."""
    found = []
    for clause in clauses:
        operands = {_text(node): node for node in _reads(clause.node)}
        seen = tuple(
            (text, _value(expression, node, environment, device))
            for text, node in list(operands.items())[:_MOST_OPERANDS]
        )
        result = _value(expression, clause.node, environment, device)
        found.append(Explanation(clause.text, result, seen))
    return found


def _value(
    expression: str, node: Node, environment: Environment, device: CelDevice
) -> Value | CelEvaluationError:
    try:
        program = plan(expression, node, environment, counted=True)
        return program.run(Frame(device, program.variables, _LIMIT))
    except CelEvaluationError as error:
        return error
    except CelTypeError as error:  # a constant that can never work was found while planning
        return CelEvaluationError(error.what)


def _reads(node: Node) -> list[Node]:
    """The outermost chains that start at ``device`` and have constant steps only."""
    pending, found = [node], []
    while pending:
        node = pending.pop()
        base, steps = unchain(node)
        constant = all(index is None for _, _, index, _ in steps)
        if steps and constant and is_device(base) and not _is_test(node):
            found.append(node)
            continue
        if _is_test(node) and constant and is_device(base):
            found.append(node)
            continue
        if isinstance(node, Comprehension):
            pending.extend(_loop_parts(node))
        else:
            pending.extend(reversed(children(node)))
    return found


def _is_test(node: Node) -> bool:
    return isinstance(node, Select) and node.test


def _loop_parts(node: Comprehension) -> list[Node]:
    # What is inside a loop depends on its variables; only what it runs over can be shown alone.
    if node.kind == "bind":
        return [node.accu_init]
    return [node.iter_range]


def _text(node: Node) -> str:
    """The chain as it would be written."""
    base, steps = unchain(node)
    text = base.name.removeprefix(".") if isinstance(base, Ident) else "…"
    for step, key, _, optional in steps:
        mark = "?" if optional else ""
        if isinstance(step, Select) or (isinstance(step, Call) and step.function == "_?._"):
            text += f".{mark}{key}"
        else:
            text += f'[{mark}"{key}"]' if isinstance(key, str) else f"[{mark}{key}]"
    return f"has({text})" if _is_test(node) else text
