# SPDX-License-Identifier: Apache-2.0
"""Static types: finds wrong names and wrong types before any device is looked at.

Writes ``type`` into every node, ``overloads`` into calls, and ``value`` into type names; replaces
qualified function names (``sets.contains``) by global calls. Rules: cel-go, checker/checker.go.
The first error ends the check.
"""

import difflib
from collections.abc import Callable, Sequence

from gpudra.driver.core.cel.assign import (
    Mapping,
    assignable,
    assignable_all,
    most_general,
    substitute,
)
from gpudra.driver.core.cel.ast import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Message,
    Node,
    Select,
)
from gpudra.driver.core.cel.declarations import Function, Overload
from gpudra.driver.core.cel.environment import Environment
from gpudra.driver.core.cel.errors import CelTypeError
from gpudra.driver.core.cel.types import (
    BOOL,
    BYTES,
    DEVICE,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    UINT,
    Type,
    is_dyn,
    is_dyn_or_error,
    list_of,
    map_of,
    optional_of,
    unwrap_optional,
)
from gpudra.driver.core.cel.values import TypeValue, Uint

_LITERALS: dict[type, Type] = {
    bool: BOOL, int: INT, Uint: UINT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL,
}  # fmt: skip
_SHOWN = {
    "_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "_%_": "%", "-_": "-", "!_": "!", "_<_": "<",
    "_<=_": "<=", "_>_": ">", "_>=_": ">=", "_==_": "==", "_!=_": "!=", "@in": "in", "_[_]": "[]",
    "_[?_]": "[?]", "_?_:_": "?:", "_&&_": "&&", "_||_": "||",
}  # fmt: skip


def check(expression: str, root: Node, environment: Environment) -> None:
    """Types the tree in place.

    Raises:
        CelTypeError: a name or a type does not fit.
    """
    checker = _Checker(expression, environment)
    checker.check(root)
    checker.settle()


class _Checker:
    def __init__(self, expression: str, environment: Environment) -> None:
        self.expression = expression
        self.environment = environment
        self.mapping: Mapping = {}
        self.variables = 0
        self.scopes: list[dict[str, Type]] = []
        self.seen: list[Node] = []

    def error(self, what: str, node: Node, hint: str = "") -> CelTypeError:
        return CelTypeError(what, expression=self.expression, offset=node.pos, hint=hint)

    def settle(self) -> None:
        """Replaces bound type variables; free ones become dyn."""
        for node in self.seen:
            node.type = substitute(self.mapping, node.type, to_dyn=True)

    def fresh(self) -> Type:
        self.variables += 1
        return Type("param", f"_var{self.variables - 1}")

    def fits(self, first: Type, second: Type) -> bool:
        extended = assignable(self.mapping, first, second)
        if extended is None:
            return False
        self.mapping = extended
        return True

    def check(self, node: Node) -> Type:
        node.type = _CHECKS[type(node)](self, node)
        self.seen.append(node)
        return node.type

    # --- names ---

    def local(self, name: str) -> Type | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def literal(self, node: Node) -> Type:
        assert isinstance(node, Literal)
        return _LITERALS[type(node.value)]

    def ident(self, node: Node) -> Type:
        assert isinstance(node, Ident)
        name = node.name.removeprefix(".")
        hidden = self.local(name)
        if hidden is not None and name == node.name:
            return hidden
        if name == "device":
            # A leading dot that matters is kept: a loop variable is called device, too.
            node.name = name if hidden is None else node.name
            return DEVICE
        named = self.environment.type_names.get(name)
        if named is None:
            raise self.undeclared(name, node)
        node.value = TypeValue(name)
        return named

    def undeclared(self, name: str, node: Node) -> CelTypeError:
        known = {"device", *self.environment.type_names, *(n for s in self.scopes for n in s)}
        return self.error(f"{name!r} is not declared", node, self.suggest(name, known))

    def suggest(self, name: str, known: Sequence[str] | set[str]) -> str:
        close = difflib.get_close_matches(name, sorted(known), 1)
        if close:
            return f"did you mean {close[0]!r}?"
        return "text needs quotes; the only variable is device"

    def select(self, node: Node) -> Type:
        assert isinstance(node, Select)
        named = None if node.test else self.qualified_type(node)
        if named is not None:
            return named
        kind = self.field(node, node.operand, node.field, optional=False)
        return BOOL if node.test else substitute(self.mapping, kind)

    def qualified_type(self, node: Select) -> Type | None:
        name = _dotted(node)
        if name is None or self.local(name.split(".", 1)[0]) is not None:
            return None
        name = name.removeprefix(".")
        named = self.environment.type_names.get(name)
        if named is not None:
            node.value = TypeValue(name)
        return named

    def field(self, node: Node, operand: Node, name: str, *, optional: bool) -> Type:
        kind, is_optional = unwrap_optional(substitute(self.mapping, self.check(operand)))
        result = DYN
        if kind.kind == "map":
            result = kind.params[1]
        elif kind.kind == "struct":
            result = self.struct_field(node, kind, name)
        elif kind.kind == "param":
            self.fits(DYN, kind)
        elif not is_dyn_or_error(kind):
            raise self.error(f"a {kind} has no fields", node, "fields exist in maps and in device")
        return optional_of(result) if is_optional or optional else result

    def struct_field(self, node: Node, kind: Type, name: str) -> Type:
        if kind != DEVICE:
            raise self.error(f"a {kind} has no field {name!r}", node, "use its functions")
        found = self.environment.fields.get(name)
        if found is None:
            raise self.error(
                f"a device has no field {name!r}",
                node,
                self.suggest(name, set(self.environment.fields))
                if difflib.get_close_matches(name, list(self.environment.fields), 1)
                else 'attributes are read as device.attributes["domain"].name',
            )
        return found

    def message(self, node: Node) -> Type:
        assert isinstance(node, Message)
        raise self.error(
            f"{node.name}{{…}} makes a message, which selectors cannot use",
            node,
            'a map is written {"key": value}',
        )

    # --- calls ---

    def call(self, node: Node) -> Type:
        assert isinstance(node, Call)
        if node.function == "_?._":
            name = node.args[1]
            assert isinstance(name, Literal)
            assert isinstance(name.value, str)
            self.check(name)
            kind = self.field(node, node.args[0], name.value, optional=True)
            node.overloads = ("select_optional_field",)
            return substitute(self.mapping, kind)
        arguments = [self.check(arg) for arg in node.args]
        function = self.find_function(node)
        if node.target is not None:
            arguments.insert(0, self.check(node.target))
        return self.resolve(node, function, arguments)

    def find_function(self, node: Call) -> Function:
        functions = self.environment.functions
        if node.target is not None:
            prefix = _dotted(node.target)
            qualified = (
                functions.get(f"{prefix}.{node.function}".removeprefix(".")) if prefix else None
            )
            if qualified is not None:
                node.function, node.target = qualified.name, None
                return qualified
        else:
            node.function = node.function.removeprefix(".")
        found = functions.get(node.function)
        if found is None:
            what = f"there is no function {node.function!r}"
            close = difflib.get_close_matches(node.function, sorted(functions), 1)
            raise self.error(what, node, f"did you mean {close[0]!r}?" if close else "")
        return found

    def resolve(self, node: Call, function: Function, arguments: list[Type]) -> Type:
        if node.function in {"_&&_", "_||_"}:
            for kind, arg in zip(arguments, node.args, strict=True):
                if not self.fits(kind, BOOL):
                    raise self.error(
                        f"{_SHOWN[node.function]} joins bools, this is a {kind}", arg, "compare it"
                    )
            node.overloads = (function.overloads[0].id,)
            return BOOL
        matched: list[str] = []
        result: Type | None = None
        member = node.target is not None
        for overload in function.overloads:
            if overload.member != member or len(overload.args) != len(arguments):
                continue
            fitting = self.match(overload, arguments)
            if fitting is None:
                continue
            matched.append(overload.id)
            if result is None:
                result = fitting
            elif not is_dyn(result) and fitting != result:
                result = DYN
        if result is None:
            raise self.no_overload(node, function, arguments)
        node.overloads = tuple(matched)
        return result

    def match(self, overload: Overload, arguments: list[Type]) -> Type | None:
        args: Sequence[Type] = overload.args
        result = overload.result
        if overload.generic:
            renamed: Mapping = {}
            for kind in (*args, result):
                self.rename(kind, renamed)
            args = [substitute(renamed, kind) for kind in args]
            result = substitute(renamed, result)
        extended = assignable_all(self.mapping, arguments, args)
        if extended is None:
            return None
        self.mapping = extended
        return substitute(extended, result)

    def rename(self, kind: Type, renamed: Mapping) -> None:
        if kind.kind == "param" and kind.name not in renamed:
            renamed[kind.name] = self.fresh()
        for part in kind.params:
            self.rename(part, renamed)

    def no_overload(self, node: Call, function: Function, arguments: list[Type]) -> CelTypeError:
        kinds = ", ".join(str(substitute(self.mapping, kind, to_dyn=True)) for kind in arguments)
        shown = _SHOWN.get(node.function, f"{node.function}()")
        known = sorted({", ".join(map(str, item.args)) for item in function.overloads})
        fitting = f"; it takes ({') or ('.join(known[:4])})" if len(known) <= 4 else ""
        return self.error(f"{shown} does not work on ({kinds}){fitting}", node, _advice(kinds))

    # --- literals of several elements ---

    def list_literal(self, node: Node) -> Type:
        assert isinstance(node, ListNode)
        joined: Type | None = None
        for index, element in enumerate(node.elements):
            kind = self.check(element)
            if index in node.optional:
                kind = self.unwrapped(kind, element)
            joined = self.join(joined, kind)
        return list_of(joined or self.fresh())

    def unwrapped(self, kind: Type, node: Node) -> Type:
        inner, is_optional = unwrap_optional(kind)
        if not is_optional and not is_dyn(inner):
            raise self.error(f"'?' wants an optional value, this is a {kind}", node, "drop the '?'")
        return inner

    def join(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if not self.fits(previous, current):
            return DYN  # the validator names the element that does not fit
        return most_general(previous, current)

    def map_literal(self, node: Node) -> Type:
        assert isinstance(node, MapNode)
        key_type: Type | None = None
        value_type: Type | None = None
        for key, value, optional in node.entries:
            key_type = self.join(key_type, self.check(key))
            kind = self.check(value)
            if optional:
                kind = self.unwrapped(kind, value)
            value_type = self.join(value_type, kind)
        if key_type is None or value_type is None:
            key_type, value_type = self.fresh(), self.fresh()
        return map_of(key_type, value_type)

    # --- loops ---

    def comprehension(self, node: Node) -> Type:
        assert isinstance(node, Comprehension)
        self.check(node.iter_range)
        accu = self.check(node.accu_init)
        elements = self.elements(node, substitute(self.mapping, node.iter_range.type))
        self.scopes.append({node.accu_var: accu})
        self.scopes.append(elements)
        self.assert_type(node.condition, BOOL)
        self.assert_type(node.step, accu)
        self.scopes.pop()
        self.check(node.result)
        self.scopes.pop()
        return substitute(self.mapping, node.result.type)

    def assert_type(self, node: Node, wanted: Type) -> None:
        kind = self.check(node)
        if not self.fits(wanted, kind):
            raise self.error(f"expected a {wanted}, this is a {kind}", node)

    def elements(self, node: Comprehension, kind: Type) -> dict[str, Type]:
        first, second = DYN, DYN
        if kind.kind == "list":
            first = second = kind.params[0]
            if node.iter_var2:
                first = INT
        elif kind.kind == "map":
            first, second = kind.params
        elif kind.kind in {"dyn", "error", "param"}:
            self.fits(DYN, kind)
        else:
            hint = (
                "attributes can be lists only with the feature gate DRAListTypeAttributes"
                if kind.kind == "any"
                else "loop over a list or a map"
            )
            raise self.error(f"a {kind} cannot be looped over", node.iter_range, hint)
        variables = {node.iter_var: first}
        if node.iter_var2:
            variables[node.iter_var2] = second
        return variables


def _advice(kinds: str) -> str:
    if "kubernetes.Quantity" in kinds:
        return 'compare quantities with .compareTo(quantity("40Gi")) >= 0'
    if "kubernetes.Semver" in kinds:
        return 'compare versions with .isGreaterThan(semver("1.2.3"))'
    return ""


def _dotted(node: Node) -> str | None:
    """``a.b.c`` as text, if it is nothing but names."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test:
        parts.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    return ".".join([node.name, *reversed(parts)])


_CHECKS: dict[type[Node], Callable[[_Checker, Node], Type]] = {
    Literal: _Checker.literal,
    Ident: _Checker.ident,
    Select: _Checker.select,
    Call: _Checker.call,
    ListNode: _Checker.list_literal,
    MapNode: _Checker.map_literal,
    Message: _Checker.message,
    Comprehension: _Checker.comprehension,
}
