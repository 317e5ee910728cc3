# SPDX-License-Identifier: Apache-2.0
"""Compiled selectors by text, and what each of them can see of a device."""

from gpudra.driver.core.allocator.reads import Reads, reads_of
from gpudra.driver.core.cel import CelCompileError, compile_selector
from gpudra.driver.core.cel import CompiledSelector as CelSelector
from gpudra.driver.core.cel.parser import parse

_LIMIT = 2048  # texts kept; a cluster has a handful of classes and some dozens of claim shapes


class CompiledSelector:
    """One expression, ready to run.

    Attributes:
        expression: its text.
        reads: what it can see of a device.
        selector: the compiled form, which can also explain itself.
    """

    __slots__ = ("expression", "matches", "reads", "selector")

    def __init__(self, expression: str) -> None:
        # Lists are legal attribute values for us: with the list gate they are, without it no
        # device has any.
        self.selector: CelSelector = compile_selector(expression, list_attributes=True)
        self.expression = expression
        self.reads: Reads = reads_of(parse(expression).root)
        self.matches = self.selector.matches


class SelectorCache:
    """Compiles each text once, errors included."""

    def __init__(self) -> None:
        self._known: dict[str, CompiledSelector | CelCompileError] = {}

    def get(self, expression: str) -> CompiledSelector:
        """The compiled selector.

        Raises:
            CelCompileError: it cannot be used.
        """
        found = self._known.get(expression)
        if found is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            try:
                found = CompiledSelector(expression)
            except CelCompileError as error:
                found = error
            self._known[expression] = found
        if isinstance(found, CelCompileError):
            raise found
        return found


SELECTORS = SelectorCache()
"""Of the whole process: what an expression compiles to depends on nothing else."""
