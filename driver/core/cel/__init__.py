# SPDX-License-Identifier: Apache-2.0
"""CEL selectors with the semantics of Kubernetes 1.37.

The allocator compiles each expression once (``compile_selector``) and asks it per device; ``explain``
tells people why a device does or does not match. Text becomes tokens (``lexer``), a tree with
macros expanded (``parser``, ``macros``), types (``checker``, ``validators``), a worst-case cost
(``cost_static``), and closures (``planner``). ``library`` holds the functions, one module per
concern. Known differences to upstream: docs/decisions/cel-differences.md.

Example::

    selector = compile_selector('device.attributes["gpu.example.com"].model == "H100"')
    selector.matches(CelDevice.from_device("gpu.example.com", device))
"""

from gpudra.driver.core.cel.device import CelDevice
from gpudra.driver.core.cel.errors import (
    CelCompileError,
    CelCostExceeded,
    CelEvaluationError,
    CelSyntaxError,
    CelTypeError,
)
from gpudra.driver.core.cel.explain import Explanation
from gpudra.driver.core.cel.selector import COST_LIMIT, CompiledSelector, compile_selector

__all__ = [
    "COST_LIMIT",
    "CelCompileError",
    "CelCostExceeded",
    "CelDevice",
    "CelEvaluationError",
    "CelSyntaxError",
    "CelTypeError",
    "CompiledSelector",
    "Explanation",
    "compile_selector",
]
