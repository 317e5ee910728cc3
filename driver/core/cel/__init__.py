# SPDX-License-Identifier: Apache-2.0
"""CEL selectors and derived attributes with the semantics of Kubernetes 1.37.

The allocator compiles each expression once (``compile_selector``, ``compile_attribute``) and asks it
per device; ``explain`` tells people why a device does or does not match. Text becomes tokens
(``lexer``), a tree with macros expanded (``parser``, ``macros``), types (``checker``,
``validators``), a worst-case cost (``cost_static``), and closures (``planner``). ``library`` holds
the functions, one module per concern. Known differences to upstream:
docs/decisions/cel-differences.md.

Example::

    selector = compile_selector('device.attributes["gpu.example.com"].model == "H100"')
    selector.matches(CelDevice.from_device("gpu.example.com", device))
"""

from gpudra.driver.core.cel.attribute import CompiledAttribute, compile_attribute
from gpudra.driver.core.cel.device import CelDevice
from gpudra.driver.core.cel.errors import (
    CelCompileError,
    CelCostExceeded,
    CelEvaluationError,
    CelSyntaxError,
    CelTypeError,
)
from gpudra.driver.core.cel.explain import Explanation
from gpudra.driver.core.cel.expression import COST_LIMIT
from gpudra.driver.core.cel.selector import CompiledSelector, compile_selector

__all__ = [
    "COST_LIMIT",
    "CelCompileError",
    "CelCostExceeded",
    "CelDevice",
    "CelEvaluationError",
    "CelSyntaxError",
    "CelTypeError",
    "CompiledAttribute",
    "CompiledSelector",
    "Explanation",
    "compile_attribute",
    "compile_selector",
]
