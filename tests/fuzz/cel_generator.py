# SPDX-License-Identifier: Apache-2.0
"""Makes CEL expressions for the differential tests.

Expressions are grown by type, so that most of them compile; now and then a part of another type, or
a damaged text, is slipped in. ``Source`` is the interface of ``random.Random``, which hypothesis
provides as well.
"""

import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.cel_devices import DRIVER, OTHER
from tests.fuzz.cel_literals import (
    BYTES,
    CIDRS,
    DOUBLES,
    DURATIONS,
    FORMAT_TEXTS,
    FORMATS,
    INTS,
    IPS,
    NAMED,
    PATTERNS,
    QUANTITIES,
    SEMVERS,
    STRINGS,
    TIMES,
    UINTS,
    URLS,
    ZONES,
)

Source = random.Random
Json = dict[str, Any]

TYPES = [
    "bool", "int", "uint", "double", "string", "bytes", "ints", "strings", "map", "quantity", "semver", "duration",
    "timestamp", "ip", "cidr", "url", "optint", "optstr", "dyn", "type", "doubles", "null",
]  # fmt: skip


# The checker lets null stand for these.
NULLABLE = {"quantity", "semver", "duration", "timestamp", "ip", "cidr", "url", "optint", "optstr"}


class Generator:
    """Grows expressions from a source of choices."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.variables: list[tuple[str, str]] = []
        self.count = 0

    def expression(self) -> tuple[str, bool]:
        """A text, and whether it is one for value mode (any type) or a bool."""
        if self.source.random() < 0.5:
            text, value = self.make("bool", self.source.randint(1, 5)), False
        else:
            text, value = (
                f"dyn({self.make(self.source.choice(TYPES), self.source.randint(1, 4))})",
                True,
            )
        if self.source.random() < 0.04:
            text = self.damage(text)
        return text, value

    def derived(self) -> str:
        """The expression of a derived attribute: any type, most often one that an attribute can have."""
        likely = ["bool", "int", "string", "semver", "ints", "strings", "dyn"]
        kind = self.source.choice(likely if self.source.random() < 0.85 else TYPES)
        text = self.make(kind, self.source.randint(0, 4))
        return self.damage(text) if self.source.random() < 0.03 else text

    def damage(self, text: str) -> str:
        """A text with one place spoilt."""
        at = self.source.randrange(len(text))
        how = self.source.randrange(3)
        if how == 0:
            return text[:at] + text[at + 1 :]
        if how == 1:
            return (
                text[:at] + self.source.choice(list("()[]{}.,?:+-*/%!&|<>=\"'\\ `@#a1")) + text[at:]
            )
        return text[:at]

    def make(self, kind: str, depth: int) -> str:
        """An expression of a type."""
        if self.source.random() < 0.015:
            kind = self.source.choice(TYPES)
        bound = [name for name, known in self.variables if known == kind]
        if bound and self.source.random() < 0.35:
            return self.source.choice(bound)
        if depth <= 0:
            return str(self.source.choice(LEAVES[kind])(self))
        chosen = self.source.random()
        if chosen < 0.006 and kind in NULLABLE:
            return f"({self.make('bool', depth - 1)} ? null : {self.make(kind, depth - 1)})"
        if chosen < 0.05:
            return f"({self.make('bool', depth - 1)} ? {self.make(kind, depth - 1)} : {self.make(kind, depth - 1)})"
        if chosen < 0.08:
            return self.bind(kind, depth)
        if chosen < 0.0815 and kind == "bool":
            return _heavy(self, depth)
        return str(self.source.choice(GROWTH[kind] + LEAVES[kind][:2])(self, depth - 1))

    def fresh(self) -> str:
        """A new variable's name."""
        self.count += 1
        return f"v{self.count}"

    def within(self, variables: list[tuple[str, str]], kind: str, depth: int) -> str:
        """An expression that may use more variables."""
        self.variables += variables
        text = self.make(kind, depth)
        del self.variables[len(self.variables) - len(variables) :]
        return text

    def bind(self, kind: str, depth: int) -> str:
        """``cel.bind``."""
        name, inner = self.fresh(), self.source.choice(["int", "string", "ints", "bool", "dyn"])
        value = self.make(inner, depth - 1)
        return f"cel.bind({name}, {value}, {self.within([(name, inner)], kind, depth - 1)})"

    def loop(self, macro: str, depth: int) -> str:
        """A predicate macro over some list or map."""
        if self.source.random() < 0.3:
            first, second = self.fresh(), self.fresh()
            over, kinds = self.range(depth, pairs=True)
            body = self.within([(first, kinds[0]), (second, kinds[1])], "bool", depth - 1)
            return f"{over}.{macro}({first}, {second}, {body})"
        name = self.fresh()
        over, kinds = self.range(depth, pairs=False)
        return f"{over}.{macro}({name}, {self.within([(name, kinds[0])], 'bool', depth - 1)})"

    def range(self, depth: int, *, pairs: bool) -> tuple[str, tuple[str, str]]:
        """Something to loop over, and the types of its variables."""
        kind = self.source.choice(["ints", "strings", "map", "dyn"])
        text = self.make(kind, depth - 1)
        if kind == "map":
            return text, ("string", "int")
        if kind == "dyn":
            return text, ("dyn", "dyn")
        element = "int" if kind == "ints" else "string"
        return text, (("int", element) if pairs else (element, element))


Leaf = Callable[..., str]


def _pick(texts: list[str]) -> Leaf:
    return lambda g, *_: g.source.choice(texts)


def _call(function: str, texts: list[str]) -> Leaf:
    return lambda g, *_: f"{function}({g.source.choice(texts)})"


def attribute(g: Generator, *_: int) -> str:
    """Some way to read an attribute."""
    name = g.source.choice(NAMED)
    domain = g.source.choice(
        [f'"{DRIVER}"', f'"{DRIVER}"', f'"{OTHER}"', '"none.example.com"', "device.driver"]
    )
    return str(g.source.choice([
        f"device.attributes[{domain}].{name}",
        f'device.attributes[{domain}]["{name}"]',
        f"device.attributes[{domain}][{g.make('string', 0)}]",
        f"dyn(device).attributes[{domain}].{name}",
        f"device.attributes[{domain}].?{name}.orValue(dyn(0))",
    ]))  # fmt: skip


def capacity(g: Generator, *_: int) -> str:
    """Some way to read a capacity."""
    return str(g.source.choice([
        f'device.capacity["{DRIVER}"].memory', f'device.capacity["{DRIVER}"].memory', f'device.capacity["{OTHER}"].compute',
        f'device.capacity["{DRIVER}"].missing', f'device.capacity["{DRIVER}"].?memory.orValue(quantity("1"))',
    ]))  # fmt: skip


def _list(kind: str) -> Leaf:
    def make(g: Generator, depth: int = 0) -> str:
        items = [g.make(kind, depth) for _ in range(g.source.randint(0, 3))]
        return "[" + ", ".join(items) + "]"

    return make


def _map(g: Generator, depth: int = 0) -> str:
    keys = g.source.sample(['"a"', '"b"', '"c"', '"model"'], g.source.randint(0, 3))
    return "{" + ", ".join(f"{key}: {g.make('int', depth)}" for key in keys) + "}"


def _template(pattern: str, *kinds: str) -> Leaf:
    """Fills the ``{}`` of a pattern with expressions of the given types."""

    def make(g: Generator, depth: int) -> str:
        return pattern.format(*(g.make(kind, depth) for kind in kinds))

    return make


def _templates(*rows: tuple[str, ...]) -> list[Leaf]:
    return [_template(row[0], *row[1:]) for row in rows]


LEAVES: dict[str, list[Leaf]] = {
    "bool": [
        _pick(["true", "false", "device.allowMultipleAllocations"]),
        lambda g, *_: f"has({attribute(g)})" if g.source.random() < 0.3 else f'has(device.attributes["{DRIVER}"].{g.source.choice(NAMED)})',
        lambda g, *_: f'"{g.source.choice(NAMED)}" in device.attributes["{DRIVER}"]',
        lambda g, *_: f"{attribute(g)} == {g.source.choice(STRINGS + INTS)}",
    ],
    "int": [_pick(INTS), _pick(INTS[:6])],
    "uint": [_pick(UINTS)],
    "double": [_pick(DOUBLES)],
    "string": [_pick(STRINGS), _pick(["device.driver"])],
    "bytes": [_pick(BYTES)],
    "ints": [_list("int"), _pick(["lists.range(3)", "[]", "[1, 2, 3]"])],
    "doubles": [_pick(["[1.5, 2.5]", "[3.0, -1.0, 2.0]", "[]"])],
    "strings": [_list("string"), _pick(['["a", "b", "a"]', '"x,y".split(",")'])],
    "map": [_map, _pick(['{"a": 1}', '{"b": 2, "a": 1}'])],
    "quantity": [_call("quantity", QUANTITIES), capacity],
    "semver": [_call("semver", SEMVERS), lambda g, *_: f"semver({g.source.choice(SEMVERS)}, {g.source.choice(['true', 'false'])})"],
    "duration": [_call("duration", DURATIONS[:7]), _call("duration", DURATIONS)],
    "timestamp": [_call("timestamp", TIMES[:5]), _call("timestamp", TIMES)],
    "ip": [_call("ip", IPS)],
    "cidr": [_call("cidr", CIDRS)],
    "url": [_call("url", URLS)],
    "optint": [_pick(["optional.none()", "optional.of(1)", "optional.ofNonZeroValue(0)", '{"a": 1}.?a', "[1][?1]"])],
    "optstr": [_pick(['optional.of("s")', 'optional.ofNonZeroValue("")', '{"a": "x"}[?"b"]'])],
    "dyn": [attribute, attribute, attribute, lambda g, *_: f"dyn({g.make(g.source.choice(['int', 'string', 'double', 'uint', 'ints', 'bool']), 0)})"],
    "type": [_pick(["int", "string", "type(device.driver)", "net.IP", "list", "google.protobuf.Duration", "null_type"])],
    "null": [_pick(["null"])],
}  # fmt: skip

_ORDERED = ["int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp"]
_EQUAL = [
    *_ORDERED,
    "ints",
    "strings",
    "map",
    "quantity",
    "semver",
    "ip",
    "cidr",
    "url",
    "optint",
    "dyn",
    "type",
]


def _compare(g: Generator, depth: int) -> str:
    if g.source.random() < 0.25:
        left, right = (
            g.source.choice(["int", "uint", "double"]),
            g.source.choice(["int", "uint", "double"]),
        )
    else:
        left = right = g.source.choice([*_ORDERED, "dyn"])
    return f"{g.make(left, depth)} {g.source.choice(['<', '<=', '>', '>='])} {g.make(right, depth)}"


def _equal(g: Generator, depth: int) -> str:
    left = g.source.choice(_EQUAL)
    right = left if g.source.random() < 0.7 else "dyn"
    return f"{g.make(left, depth)} {g.source.choice(['==', '!='])} {g.make(right, depth)}"


def _logic(g: Generator, depth: int) -> str:
    operator = g.source.choice(["&&", "||"])
    terms = [g.make("bool", depth) for _ in range(g.source.randint(2, 4))]
    return "(" + f" {operator} ".join(terms) + ")"


def _predicate(g: Generator, depth: int) -> str:
    return g.loop(g.source.choice(["all", "exists", "exists_one", "existsOne"]), depth)


def _heavy(g: Generator, depth: int) -> str:
    """Loops within loops, around the cost limit."""
    outer, inner = (g.source.choice([3, 30, 100, 300, 1000, 3000]) for _ in range(2))
    macros = [g.source.choice(["all", "exists", "exists_one", "map", "filter"]) for _ in range(2)]
    first, second = g.fresh(), g.fresh()
    body = g.source.choice(
        [
            "true",
            "false",
            f"{first} < {second}",
            f"{first} + {second} == -1",
            f"string({second}).contains('7')",
            f"{second} / {first} == 0",
        ]
    )
    tail = {"map": ".size() >= 0", "filter": ".size() >= 0"}
    loop = f"lists.range({inner}).{macros[1]}({second}, {body}){tail.get(macros[1], '')}"
    return f"lists.range({outer}).{macros[0]}({first}, {loop}){tail.get(macros[0], '')}"


def _collected(kind: str) -> Leaf:
    element = "int" if kind == "ints" else "string"

    def make(g: Generator, depth: int) -> str:
        name, other = g.fresh(), g.fresh()
        over, kinds = g.range(depth, pairs=False)
        macro = g.source.choice(["map", "map3", "filter", "transformList"])
        if macro == "filter":
            return f"{g.make(kind, depth)}.filter({name}, {g.within([(name, element)], 'bool', depth - 1)})"
        if macro == "transformList":
            over, kinds = g.range(depth, pairs=True)
            scope = [(name, kinds[0]), (other, kinds[1])]
            return f"{over}.transformList({name}, {other}, {g.within(scope, element, depth - 1)})"
        body = g.within([(name, kinds[0])], element, depth - 1)
        if macro == "map3":
            return f"{over}.map({name}, {g.within([(name, kinds[0])], 'bool', depth - 1)}, {body})"
        return f"{over}.map({name}, {body})"

    return make


def _transform_map(g: Generator, depth: int) -> str:
    first, second = g.fresh(), g.fresh()
    scope = [(first, "string"), (second, "int")]
    if g.source.random() < 0.5:
        return f"{g.make('map', depth)}.transformMap({first}, {second}, {g.within(scope, 'int', depth - 1)})"
    return f"{g.make('map', depth)}.transformMapEntry({first}, {second}, {{{first}: {g.within(scope, 'int', depth - 1)}}})"


def _formatted(g: Generator, depth: int) -> str:
    clauses = g.source.choices(
        ["%s", "%d", "%f", "%.2f", "%e", "%x", "%X", "%o", "%b", "%%", "%.0f", "%q", "%.3e"],
        k=g.source.randint(0, 3),
    )
    kinds = {
        "%s": "string",
        "%d": "int",
        "%f": "double",
        "%.2f": "double",
        "%e": "double",
        "%.0f": "double",
        "%.3e": "double",
    }
    args = [
        g.make(g.source.choice([kinds.get(clause, "int"), g.source.choice(TYPES)] if g.source.random() < 0.2 else [kinds.get(clause, "int")]), min(depth, 1))
        for clause in clauses
        if clause != "%%"
    ]  # fmt: skip
    return f'"p{" ".join(clauses)}".format([{", ".join(args)}])'


def _time_part(g: Generator, depth: int) -> str:
    part = g.source.choice(
        ["getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek", "getHours", "getMinutes", "getSeconds", "getMilliseconds"]
    )  # fmt: skip
    zone = g.source.choice(["", g.source.choice(ZONES)])
    return f"{g.make('timestamp', depth)}.{part}({zone})"


def _rare(g: Generator, depth: int) -> str:
    """What hardly ever compiles is drawn rarely."""
    if g.source.random() < 0.1:
        return _authorizer(g, depth)
    query = g.source.choice(
        ["url({}).getQuery()", "url({}).getQuery().k", '"k" in url({}).getQuery()']
    )
    text = query.format(g.make("string", 0) if g.source.random() < 0.3 else g.source.choice(URLS))
    wanted = g.source.choice(["{}", '["v"]', "[]", "true"])
    return text if text.startswith('"k"') else f"{text} == {wanted}"


def _validated(g: Generator, _depth: int) -> str:
    name = g.source.choice(FORMATS)
    text = g.source.choice(FORMAT_TEXTS)
    if g.source.random() < 0.5:
        return f"format.{name}().validate({text}).hasValue()"
    return f'format.named("{name}").value().validate({text}).optMap(e, e.size()).orValue(0) == 0'


def _authorizer(g: Generator, depth: int) -> str:
    """The authorizer library is declared, but nobody has an authorizer here: it never compiles."""
    member = g.source.choice(
        ["path({})", "group({})", "resource({})", "check({})", "serviceAccount({}, {})", "allowed()", "reason()", "errored()", "error()", "namespace({})", "subresource({})", "name({})", "fieldSelector({})", "labelSelector({})"]
    )  # fmt: skip
    texts = [g.make("string", 0) for _ in range(member.count("{}"))]
    holder = g.source.choice(["authorizer", "device", g.make("dyn", depth)])
    return f"{holder}.{member.format(*texts)}.allowed()"


GROWTH: dict[str, list[Leaf]] = {
    "bool": [
        _compare, _equal, _logic, _logic, _predicate, _predicate, _equal, _compare, _validated, _rare,
        *_templates(
            ("!{}", "bool"), ("{}.startsWith({})", "string", "string"), ("{}.endsWith({})", "string", "string"),
            ("{}.contains({})", "string", "string"), ("{} in {}", "int", "ints"), ("{} in {}", "string", "strings"), ("{} in {}", "string", "map"),
            ("{} in {}", "dyn", "dyn"), ("{}.isSorted()", "ints"), ("{}.isSorted()", "strings"), ("{}.hasValue()", "optint"), ("{}.isInteger()", "quantity"),
            ("{}.isGreaterThan({})", "quantity", "quantity"), ("{}.isLessThan({})", "quantity", "quantity"), ("{}.isGreaterThan({})", "semver", "semver"),
            ("{}.isLessThan({})", "semver", "dyn"), ("isQuantity({})", "string"), ("isSemver({})", "string"), ("isSemver({}, {})", "string", "bool"),
            ("isIP({})", "string"), ("isCIDR({})", "string"), ("isURL({})", "string"), ("ip.isCanonical({})", "string"), ("{}.isLoopback()", "ip"),
            ("{}.isUnspecified()", "ip"), ("{}.isGlobalUnicast()", "ip"), ("{}.isLinkLocalUnicast()", "ip"), ("{}.isLinkLocalMulticast()", "ip"),
            ("{}.containsIP({})", "cidr", "ip"), ("{}.containsIP({})", "cidr", "string"), ("{}.containsCIDR({})", "cidr", "cidr"), ("{}.containsCIDR({})", "cidr", "string"),
            ("sets.contains({}, {})", "ints", "ints"), ("sets.intersects({}, {})", "strings", "strings"), ("sets.equivalent({}, {})", "ints", "ints"),
            ("bool({})", "string"), ("{}.includes({})", "dyn", "dyn"), ("{}.includes({})", "ints", "int"), ("{}.compareTo({}) >= 0", "quantity", "quantity"),
            ("type({}) == {}", "dyn", "type"), ("{}.all(x, x != {})", "dyn", "dyn"), ("{}.matches({})", "string", "string"),
            ("{} in [1, 2, 3]", "dyn"), ('{} in ["a", "H100"]', "dyn"), ("{} in [1.0, 7.0]", "dyn"),
        ),
        lambda g, d: f"{g.make('string', d)}.matches({g.source.choice(PATTERNS)})",
        lambda g, d: f"matches({g.make('string', d)}, {g.source.choice(PATTERNS)})",
    ],
    "int": [
        _time_part,
        *_templates(
            ("({} + {})", "int", "int"), ("({} - {})", "int", "int"), ("({} * {})", "int", "int"), ("({} / {})", "int", "int"), ("({} % {})", "int", "int"),
            ("-({})", "int"), ("{}.size()", "string"), ("size({})", "ints"), ("size({})", "map"), ("{}.size()", "bytes"), ("int({})", "string"), ("int({})", "double"),
            ("int({})", "uint"), ("int({})", "duration"), ("int({})", "timestamp"), ("{}.indexOf({})", "string", "string"), ("{}.indexOf({}, {})", "string", "string", "int"),
            ("{}.lastIndexOf({})", "string", "string"), ("{}.lastIndexOf({}, {})", "string", "string", "int"), ("{}.indexOf({})", "ints", "int"), ("{}.lastIndexOf({})", "strings", "string"),
            ("{}.sum()", "ints"), ("{}.min()", "ints"), ("{}.max()", "ints"), ("{}[{}]", "ints", "int"), ("{}[{}]", "map", "string"), ("{}.a", "map"), ("{}.orValue({})", "optint", "int"),
            ("{}.value()", "optint"), ("sign({})", "quantity"), ("{}.asInteger()", "quantity"), ("{}.compareTo({})", "quantity", "quantity"), ("{}.compareTo({})", "semver", "semver"),
            ("{}.major()", "semver"), ("{}.minor()", "semver"), ("{}.patch()", "dyn"), ("{}.family()", "ip"), ("{}.prefixLength()", "cidr"), ("{}.getHours()", "duration"),
            ("{}.getMilliseconds()", "duration"), ("{}.getSeconds()", "duration"), ("{}.first().orValue({})", "ints", "int"), ("size({})", "dyn"),
        ),
    ],
    "uint": _templates(
        ("({} + {})", "uint", "uint"), ("({} - {})", "uint", "uint"), ("({} * {})", "uint", "uint"), ("({} / {})", "uint", "uint"), ("({} % {})", "uint", "uint"),
        ("uint({})", "int"), ("uint({})", "double"), ("uint({})", "string"), ("[{}, {}].max()", "uint", "uint"),
    ),
    "double": _templates(
        ("({} + {})", "double", "double"), ("({} - {})", "double", "double"), ("({} * {})", "double", "double"), ("({} / {})", "double", "double"), ("-({})", "double"),
        ("double({})", "int"), ("double({})", "string"), ("double({})", "uint"), ("{}.asApproximateFloat()", "quantity"), ("{}.sum()", "doubles"), ("{}.max()", "doubles"),
    ),
    "string": [
        _formatted,
        *_templates(
            ("({} + {})", "string", "string"), ("string({})", "int"), ("string({})", "double"), ("string({})", "bytes"), ("string({})", "duration"), ("string({})", "timestamp"),
            ("string({})", "bool"), ("string({})", "ip"), ("string({})", "cidr"), ("string({})", "dyn"), ("{}.charAt({})", "string", "int"), ("{}.lowerAscii()", "string"),
            ("{}.upperAscii()", "string"), ("{}.replace({}, {})", "string", "string", "string"), ("{}.replace({}, {}, {})", "string", "string", "string", "int"),
            ("{}.substring({})", "string", "int"), ("{}.substring({}, {})", "string", "int", "int"), ("{}.trim()", "string"), ("{}.join({})", "strings", "string"), ("{}.join()", "strings"),
            ("strings.quote({})", "string"), ("{}[{}]", "strings", "int"), ("{}.getHost()", "url"), ("{}.getScheme()", "url"), ("{}.getHostname()", "url"), ("{}.getPort()", "url"),
            ("{}.getEscapedPath()", "url"), ("{}.orValue({})", "optstr", "string"), ("{}.max()", "strings"),
        ),
        lambda g, d: f"{g.make('string', d)}.find({g.source.choice(PATTERNS)})",
    ],
    "bytes": _templates(("({} + {})", "bytes", "bytes"), ("bytes({})", "string")),
    "ints": [
        _list("int"), _collected("ints"), _collected("ints"),
        *_templates(
            ("({} + {})", "ints", "ints"), ("{}.slice({}, {})", "ints", "int", "int"), ("{}.sort()", "ints"), ("{}.reverse()", "ints"), ("{}.distinct()", "ints"),
            ("[{}, {}].flatten()", "ints", "ints"), ("{}.sortBy(x, -x)", "ints"), ("[?{}, ?{}]", "optint", "optint"), ("[{}, {}].flatten({})", "ints", "ints", "int"),
            ("optional.unwrap([{}, {}])", "optint", "optint"), ("[{}].unwrapOpt()", "optint"), ("lists.range({})", "int"), ("{}.map(k, {{k: 1}}[k])", "map"),
        ),
    ],
    "doubles": _templates(("[{}, {}]", "double", "double"), ("{}.sort()", "doubles"), ("{}.reverse()", "doubles")),
    "strings": [
        _list("string"), _collected("strings"),
        *_templates(
            ("{}.split({})", "string", "string"), ("{}.split({}, {})", "string", "string", "int"), ("({} + {})", "strings", "strings"), ("{}.sort()", "strings"), ("{}.distinct()", "strings"),
            ("{}.sortBy(x, x.size())", "strings"), ("{}.reverse()", "strings"), ("{}.slice(0, {})", "strings", "int"),
        ),
        lambda g, d: f"{g.make('string', d)}.findAll({g.source.choice(PATTERNS)})",
        lambda g, d: f"{g.make('string', d)}.findAll({g.source.choice(PATTERNS)}, {g.make('int', 0)})",
    ],
    "map": [_map, _transform_map, *_templates(('{{"a": {}, ?"b": {}}}', "int", "optint"))],
    "quantity": [capacity, *_templates(("{}.add({})", "quantity", "quantity"), ("{}.sub({})", "quantity", "quantity"), ("{}.add({})", "quantity", "int"), ("{}.sub({})", "quantity", "int"), ("quantity({})", "string"))],
    "semver": _templates(("semver({})", "string"), ("semver({}, true)", "string")),
    "duration": _templates(("({} + {})", "duration", "duration"), ("({} - {})", "duration", "duration"), ("({} - {})", "timestamp", "timestamp"), ("duration({})", "string")),
    "timestamp": _templates(("({} + {})", "timestamp", "duration"), ("({} - {})", "timestamp", "duration"), ("timestamp({})", "int"), ("timestamp({})", "string")),
    "ip": _templates(("{}.ip()", "cidr"), ("ip({})", "string")),
    "cidr": _templates(("{}.masked()", "cidr"), ("cidr({})", "string")),
    "url": _templates(("url({})", "string")),
    "optint": _templates(
        ("optional.of({})", "int"), ("optional.ofNonZeroValue({})", "int"), ("{}.or({})", "optint", "optint"), ("{}[?{}]", "ints", "int"), ("{}[?{}]", "map", "string"), ("{}.?a", "map"),
        ("{}.optMap(x, x + 1)", "optint"), ("{}.optFlatMap(x, optional.of(x))", "optint"), ("{}.first()", "ints"), ("{}.last()", "ints"),
    ),
    "optstr": _templates(("optional.of({})", "string"), ("{}[?{}]", "strings", "int"), ("{}.optMap(x, x + {})", "optstr", "string"), ("{}.last()", "strings")),
    "dyn": [
        attribute,
        *_templates(
            ("dyn({})", "int"), ("dyn({})", "string"), ("dyn({})", "ints"), ("dyn({})", "map"), ("dyn({})", "quantity"), ("dyn({})", "semver"), ("{}[{}]", "dyn", "dyn"), ("{}.a", "dyn"),
            ("dyn({})", "optint"), ("dyn({})", "double"), ("dyn({})", "ip"), ("{}.?a.orValue({})", "dyn", "dyn"), ("({} + {})", "dyn", "dyn"), ("{}[{}]", "strings", "dyn"), ("dyn({})", "bytes"),
        ),
    ],
    "type": _templates(("type({})", "int"), ("type({})", "dyn"), ("type({})", "quantity"), ("type({})", "map"), ("type({})", "type")),
    "null": [lambda _g, _d: "null"],
}  # fmt: skip
