# SPDX-License-Identifier: Apache-2.0
"""Static types of expressions, as the checker reasons about them.

``kind`` decides behaviour, ``name`` tells apart types of one kind, ``params`` holds element types.
``dyn`` and ``any`` accept everything; ``any`` cannot be looped over, which is how Kubernetes
refuses list attributes without the feature gate.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """One static type. Compared by content."""

    kind: str
    name: str
    params: tuple["Type", ...] = ()

    def __str__(self) -> str:
        if self.kind == "param":
            return self.name
        if self.params:
            return f"{self.name}({', '.join(str(param) for param in self.params)})"
        return self.name


def _simple(kind: str, name: str = "") -> Type:
    return Type(kind, name or kind)


BOOL = _simple("bool")
INT = _simple("int")
UINT = _simple("uint")
DOUBLE = _simple("double")
STRING = _simple("string")
BYTES = _simple("bytes")
NULL = _simple("null", "null_type")
DYN = _simple("dyn")
ANY = _simple("any")
ERROR = _simple("error")
DURATION = _simple("duration", "google.protobuf.Duration")
TIMESTAMP = _simple("timestamp", "google.protobuf.Timestamp")

QUANTITY = _simple("struct", "kubernetes.Quantity")
SEMVER = _simple("struct", "kubernetes.Semver")
URL = _simple("struct", "kubernetes.URL")
FORMAT = _simple("struct", "kubernetes.NamedFormat")
DEVICE = _simple("struct", "kubernetes.DRADevice")
IP = _simple("opaque", "net.IP")
CIDR = _simple("opaque", "net.CIDR")

A = _simple("param", "A")
B = _simple("param", "B")


def list_of(element: Type) -> Type:
    """``list(element)``."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """``map(key, value)``."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """``optional_type(value)``."""
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type | None = None) -> Type:
    """The type of a type value."""
    return Type("type", "type", (value,) if value is not None else ())


def is_dyn(kind: Type) -> bool:
    """Whether anything goes (``dyn``, ``any``)."""
    return kind.kind in {"dyn", "any"}


def is_dyn_or_error(kind: Type) -> bool:
    """Whether anything goes, or an error was already reported."""
    return kind.kind in {"dyn", "any", "error"}


def unwrap_optional(kind: Type) -> tuple[Type, bool]:
    """The type inside an optional, and whether it was one."""
    if kind.kind == "opaque" and kind.name == "optional_type":
        return kind.params[0], True
    return kind, False
