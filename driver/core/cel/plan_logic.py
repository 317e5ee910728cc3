# SPDX-License-Identifier: Apache-2.0
"""Plans for ``&&`` and ``||``, which may absorb errors (cel-spec, "Logical Operators").

``decisive`` is the value that settles the whole: false for ``&&``, true for ``||``. It wins over
errors on either side. Costs are those of the operands alone.
"""

from typing import Any

from gpudra.driver.core.cel.ast import Call, Node
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.plan import Run, not_a_bool
from gpudra.driver.core.cel.values import Value


def terms_of(node: Node, function: str = "") -> list[Node]:
    """The operands of nested ``&&`` or ``||`` from left to right."""
    wanted = {function} if function else {"_&&_", "_||_"}
    if isinstance(node, Call) and node.function in wanted:
        left, right = node.args
        return [*terms_of(left, node.function), *terms_of(right, node.function)]
    return [node]


def both(runs: list[Run], decisive: bool, symbol: str) -> Run:
    """Two operands."""
    first, second = runs
    neutral = not decisive

    def run(frame: Any) -> Value:
        try:
            answer = first(frame)
        except CelValueError:
            if second(frame) is decisive:
                return decisive
            raise
        if answer is decisive:
            return decisive
        last = second(frame)
        if last is decisive:
            return decisive
        if answer is not neutral:
            raise not_a_bool(answer, symbol)
        if last is not neutral:
            raise not_a_bool(last, symbol)
        return neutral

    return run


def many(runs: list[Run], decisive: bool, symbol: str) -> Run:
    """Any number of operands."""
    neutral = not decisive

    def run(frame: Any) -> Value:
        failure: CelValueError | None = None
        for term in runs:
            try:
                answer = term(frame)
            except CelValueError as error:
                failure = failure or error
                continue
            if answer is decisive:
                return decisive
            if answer is not neutral:
                failure = failure or not_a_bool(answer, symbol)
        if failure is not None:
            raise failure
        return neutral

    return run
