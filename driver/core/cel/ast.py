# SPDX-License-Identifier: Apache-2.0
"""The nodes of a parsed expression.

The parser makes them (macros already expanded), the checker writes ``type`` and ``overloads``
into them, the cost estimate and the planner read them. ``pos`` is the offset in the source.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gpudra.driver.core.cel.types import DYN, Type


class Node(ABC):
    """What all expressions share. ``depth`` counts operations nested in the source below it."""

    __slots__ = ("depth", "pos", "type")

    def __init__(self, pos: int) -> None:
        self.pos = pos
        self.depth = 0
        self.type: Type = DYN

    @abstractmethod
    def copy(self) -> "Node":
        """A tree of fresh nodes, for macros that use an argument twice."""


class Literal(Node):
    """A constant: bool, int, Uint, float, str, bytes or None."""

    __slots__ = ("value",)

    def __init__(self, pos: int, value: object) -> None:
        super().__init__(pos)
        self.value = value

    def copy(self) -> Node:
        """As ``Node.copy``."""
        return Literal(self.pos, self.value)


class Ident(Node):
    """A variable, or a type's name; then ``value`` holds the type value after checking."""

    __slots__ = ("name", "value")

    def __init__(self, pos: int, name: str) -> None:
        super().__init__(pos)
        self.name = name
        self.value: object = None

    def copy(self) -> Node:
        """As ``Node.copy``."""
        return Ident(self.pos, self.name)


class Select(Node):
    """``operand.field``, or ``has(operand.field)`` when ``test`` is set.

    A dotted type name (``net.IP``) becomes a value while checking, see ``value``.
    """

    __slots__ = ("field", "operand", "test", "value")

    def __init__(self, pos: int, operand: Node, field: str, *, test: bool = False) -> None:
        super().__init__(pos)
        self.operand = operand
        self.field = field
        self.test = test
        self.value: object = None

    def copy(self) -> Node:
        """As ``Node.copy``."""
        return Select(self.pos, self.operand.copy(), self.field, test=self.test)


class Call(Node):
    """A function, operator or method call. Operators carry names such as ``_+_``."""

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(
        self, pos: int, function: str, args: Sequence[Node], target: Node | None = None
    ) -> None:
        super().__init__(pos)
        self.function = function
        self.args = list(args)
        self.target = target
        self.overloads: tuple[str, ...] = ()

    def copy(self) -> Node:
        """As ``Node.copy``."""
        target = self.target.copy() if self.target is not None else None
        return Call(self.pos, self.function, [arg.copy() for arg in self.args], target)

    def operands(self) -> list[Node]:
        """Target, if any, and arguments in the order of evaluation."""
        return self.args if self.target is None else [self.target, *self.args]


class ListNode(Node):
    """``[a, ?b]``; ``optional`` holds the indices of elements with a question mark."""

    __slots__ = ("elements", "optional")

    def __init__(
        self, pos: int, elements: Sequence[Node], optional: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(pos)
        self.elements = list(elements)
        self.optional = optional

    def copy(self) -> Node:
        """As ``Node.copy``."""
        return ListNode(self.pos, [item.copy() for item in self.elements], self.optional)


class MapNode(Node):
    """``{k: v, ?k: v}``: triples of key, value and whether it is optional."""

    __slots__ = ("entries",)

    def __init__(self, pos: int, entries: Sequence[tuple[Node, Node, bool]]) -> None:
        super().__init__(pos)
        self.entries = list(entries)

    def copy(self) -> Node:
        """As ``Node.copy``."""
        return MapNode(self.pos, [(k.copy(), v.copy(), opt) for k, v, opt in self.entries])


class Message(Node):
    """``Name{field: value}``. No such type exists for selectors; the checker refuses it."""

    __slots__ = ("name",)

    def __init__(self, pos: int, name: str) -> None:
        super().__init__(pos)
        self.name = name

    def copy(self) -> Node:
        """As ``Node.copy``."""
        return Message(self.pos, self.name)


class Comprehension(Node):
    """The loop that macros expand to (cel-spec, "Macros").

    ``accu_var`` starts as ``accu_init``; while ``condition`` holds, each element of
    ``iter_range`` sets it to ``step``; the value is ``result``. ``kind`` names the macro so that
    the planner can run the loop natively: all, exists, exists_one, map, filter, transform_map,
    transform_entry, or bind for a plain variable binding. ``predicate`` and ``transform`` are
    the macro's own arguments, the same nodes that stand inside ``step``.
    """

    __slots__ = (
        "accu_init",
        "accu_var",
        "condition",
        "iter_range",
        "iter_var",
        "iter_var2",
        "kind",
        "predicate",
        "result",
        "step",
        "transform",
    )

    def __init__(
        self,
        pos: int,
        kind: str,
        *,
        iter_range: Node,
        iter_vars: tuple[str, str],
        accu: tuple[str, Node],
        condition: Node,
        step: Node,
        result: Node,
    ) -> None:
        super().__init__(pos)
        self.kind = kind
        self.iter_range = iter_range
        self.iter_var, self.iter_var2 = iter_vars
        self.accu_var, self.accu_init = accu
        self.condition = condition
        self.step = step
        self.result = result
        self.predicate: Node | None = None
        self.transform: Node | None = None

    def copy(self) -> Node:
        """As ``Node.copy``."""
        fresh = Comprehension(
            self.pos,
            self.kind,
            iter_range=self.iter_range.copy(),
            iter_vars=(self.iter_var, self.iter_var2),
            accu=(self.accu_var, self.accu_init.copy()),
            condition=self.condition.copy(),
            step=self.step.copy(),
            result=self.result.copy(),
        )
        fresh.locate_arguments()
        return fresh

    def locate_arguments(self) -> None:
        """Finds the macro's own arguments inside ``step``, whose shape ``kind`` determines."""
        step = self.step
        if self.kind == "bind" or not isinstance(step, Call):
            return
        if self.kind in {"all", "exists"}:
            self.predicate = step.args[1]
            return
        if step.function == "_?_:_":
            self.predicate, taken = step.args[0], step.args[1]
            step = taken if isinstance(taken, Call) else step
        if self.kind in {"map", "filter"}:
            items = step.args[1]
            self.transform = items.elements[0] if isinstance(items, ListNode) else None
        elif self.kind in {"transform_map", "transform_entry"}:
            self.transform = step.args[-1]

    def key(self) -> Node:
        """The variable that becomes the key in ``transformMap``."""
        step = self.step
        if isinstance(step, Call) and step.function == "_?_:_":
            step = step.args[1]
        assert isinstance(step, Call)
        return step.args[1]
