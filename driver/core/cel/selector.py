# SPDX-License-Identifier: Apache-2.0
"""Compiled selectors: ``compile_selector`` works once, the allocator asks ``matches`` per device."""

from functools import lru_cache
from typing import Any

from gpudra.driver.core.cel.ast import Node
from gpudra.driver.core.cel.device import CelDevice, Frame
from gpudra.driver.core.cel.environment import Environment, environment
from gpudra.driver.core.cel.errors import CelEvaluationError, CelSyntaxError, CelTypeError
from gpudra.driver.core.cel.explain import Explanation, explain
from gpudra.driver.core.cel.expression import COST_LIMIT, CompiledExpression, too_deep
from gpudra.driver.core.cel.plan import NeedsCountingError
from gpudra.driver.core.cel.planner import Program, plan
from gpudra.driver.core.cel.types import BOOL
from gpudra.driver.core.cel.validators import has_loop
from gpudra.driver.core.cel.values import Value, type_name

# The estimate is upstream's and may be too low, most of all where the size of a list is guessed
# (flatten, say). Without loops that is a matter of some units: below a tenth of the limit no
# evaluation can reach it, so nothing needs to be counted. With loops it holds for a hundredth of
# the limit and as many elements as attributes can have; longer loops fall back to counting.
_SURELY_CHEAP = COST_LIMIT // 10
_CHEAP_LOOPS = COST_LIMIT // 100
_FEW_ELEMENTS = 96
_CACHE_SIZE = 4096


class CompiledSelector(CompiledExpression):
    """One selector, ready to be asked.

    Attributes:
        expression: the text.
        cost_estimate: worst-case cost; the API server refuses selectors above ``COST_LIMIT``.
    """

    __slots__ = ("_plain",)

    def __init__(self, expression: str, rules: Environment) -> None:
        super().__init__(expression, rules)
        root = self._parsed.root
        if self.cost_estimate <= (_CHEAP_LOOPS if has_loop(root) else _SURELY_CHEAP):
            self._plain: Program | None = plan(expression, root, rules, counted=False)
        else:
            self._plain = None
            self._counting()

    def _check_result(self, root: Node) -> None:
        if root.type in {BOOL, self._environment.attribute}:
            return
        raise CelTypeError(
            f"a selector is a bool, this is a {root.type}",
            expression=self.expression,
            offset=root.pos,
            hint="compare it with something",
        )

    def matches(self, device: CelDevice) -> bool:
        """Whether the device is selected.

        Raises:
            CelEvaluationError: there is no answer, for example for want of an attribute.
        """
        plain = self._plain
        if plain is None:
            return self.evaluate(device)[0]
        try:
            target: Any = (
                Frame(device, plain.variables, _FEW_ELEMENTS) if plain.variables else device
            )
            answer = plain.run(target)
        except NeedsCountingError:
            return self.evaluate(device)[0]
        except RecursionError as error:
            raise too_deep() from error
        if answer is True or answer is False:
            return bool(answer)
        raise _no_bool(answer)

    def evaluate(self, device: CelDevice) -> tuple[bool, int]:
        """As ``matches``, and the cost of this evaluation.

        Raises:
            CelEvaluationError: there is no answer.
            CelCostExceeded: it would cost more than ``COST_LIMIT``.
        """
        answer, cost = self.value(device)
        if answer is True or answer is False:
            return bool(answer), cost
        raise _no_bool(answer)

    def explain(self, device: CelDevice) -> list[Explanation]:
        """What each clause of the outermost ``&&`` says about a device, and what it read.

        Never raises for the device's sake: errors are part of the answer.
        """
        return explain(self.expression, self._parsed.clauses, self._environment, device)


def _no_bool(value: Value) -> CelEvaluationError:
    return CelEvaluationError(
        f"the selector gives a {type_name(value)} instead of a bool", hint="compare it"
    )


@lru_cache(maxsize=_CACHE_SIZE)
def _compile(expression: str, list_attributes: bool) -> CompiledSelector:
    try:
        return CompiledSelector(expression, environment(list_attributes=list_attributes))
    except RecursionError as error:
        raise CelSyntaxError(
            "the expression is nested too deeply", expression=expression, hint="split it"
        ) from error


def compile_selector(expression: str, *, list_attributes: bool = False) -> CompiledSelector:
    """Compiles a selector, or takes it from a bounded cache.

    Args:
        expression: the text of ``selectors[].cel.expression``.
        list_attributes: use the rules by which the scheduler reads stored expressions: attributes
            may be lists, ``includes()`` exists. Without it, the rules by which the API server admits
            new ones while the feature gate DRAListTypeAttributes is off.

    Raises:
        CelSyntaxError: it is no CEL.
        CelTypeError: names or types do not fit.
    """
    return _compile(expression, list_attributes)
