# SPDX-License-Identifier: Apache-2.0
"""Compiled expressions: what selectors and derived attributes have in common.

An expression is parsed, checked, priced and planned once; ``selector`` and ``attribute`` say which
results they take and what they make of them.
"""

from abc import ABC, abstractmethod

from gpudra.driver.core.cel.ast import Node
from gpudra.driver.core.cel.checker import check
from gpudra.driver.core.cel.cost_static import estimate
from gpudra.driver.core.cel.device import CelDevice, Frame
from gpudra.driver.core.cel.environment import Environment
from gpudra.driver.core.cel.errors import CelEvaluationError
from gpudra.driver.core.cel.parser import Parsed, parse
from gpudra.driver.core.cel.planner import Program, plan
from gpudra.driver.core.cel.validators import validate
from gpudra.driver.core.cel.values import Value

COST_LIMIT = 1_000_000  # CELSelectorExpressionMaxCost, at admission and for each evaluation


class CompiledExpression(ABC):
    """One expression, ready to be evaluated.

    Attributes:
        expression: the text.
        cost_estimate: worst-case cost; the API server refuses expressions above ``COST_LIMIT``.
    """

    __slots__ = ("_counted", "_environment", "_parsed", "cost_estimate", "expression")

    def __init__(self, expression: str, rules: Environment) -> None:
        self.expression = expression
        self._environment = rules
        self._parsed: Parsed = parse(expression)
        root = self._parsed.root
        check(expression, root, rules)
        validate(expression, root)
        self._check_result(root)
        self.cost_estimate = estimate(root)
        self._counted: Program | None = None

    @abstractmethod
    def _check_result(self, root: Node) -> None:
        """Refuses static types that the result may not have.

        Raises:
            CelTypeError: it has one of these.
        """

    @property
    def root(self) -> Node:
        """The typed tree."""
        return self._parsed.root

    @property
    def too_costly(self) -> bool:
        """Whether the API server would refuse to store the expression."""
        return self.cost_estimate > COST_LIMIT

    def value(self, device: CelDevice) -> tuple[Value, int]:
        """The value whatever its type, and the cost of this evaluation.

        Raises:
            CelEvaluationError: there is none.
            CelCostExceeded: it would cost more than ``COST_LIMIT``.
        """
        frame = Frame(device, self._counting().variables, COST_LIMIT)
        try:
            return self._counting().run(frame), frame.cost
        except RecursionError as error:
            raise too_deep() from error

    def _counting(self) -> Program:
        """The program that counts what it costs; made when first asked for."""
        if self._counted is None:
            self._counted = plan(
                self.expression, self._parsed.root, self._environment, counted=True
            )
        return self._counted


def too_deep() -> CelEvaluationError:
    """The error of an evaluation that is nested deeper than Python's stack."""
    return CelEvaluationError("the expression is nested too deeply to be evaluated")
