# SPDX-License-Identifier: Apache-2.0
"""Which type may stand where: assignability with type parameters.

The rules are cel-go's (checker/types.go): parameters are bound as they are met, ``dyn`` fits
everything, ``null`` fits messages, opaque types, durations and timestamps. A binding that does
not work out leaves the mapping untouched.
"""

from collections.abc import Sequence

from gpudra.driver.core.cel.types import Type, is_dyn, is_dyn_or_error

# From the name of a type parameter to what it stands for.
Mapping = dict[str, Type]

_NULLABLE = frozenset({"null", "opaque", "struct", "any", "duration", "timestamp"})


def has_params(kind: Type) -> bool:
    """Whether a type parameter occurs anywhere in the type."""
    return kind.kind == "param" or any(has_params(part) for part in kind.params)


def substitute(mapping: Mapping, kind: Type, *, to_dyn: bool = False) -> Type:
    """The type with bound parameters replaced, and with ``to_dyn`` the free ones by ``dyn``."""
    if kind.kind == "param":
        bound = mapping.get(kind.name)
        if bound is not None:
            return substitute(mapping, bound, to_dyn=to_dyn)
        return _DYN if to_dyn else kind
    if not kind.params:
        return kind
    return Type(
        kind.kind,
        kind.name,
        tuple(substitute(mapping, part, to_dyn=to_dyn) for part in kind.params),
    )


_DYN = Type("dyn", "dyn")


def assignable(mapping: Mapping, first: Type, second: Type) -> Mapping | None:
    """The mapping extended so that the types fit, or None if they cannot."""
    if first == second and first.kind != "param" and not first.params:
        return mapping
    trial = dict(mapping)
    return trial if _fits(trial, first, second) else None


def assignable_all(
    mapping: Mapping, firsts: Sequence[Type], seconds: Sequence[Type]
) -> Mapping | None:
    """As ``assignable``, pairwise."""
    if len(firsts) != len(seconds):
        return None
    trial = dict(mapping)
    for first, second in zip(firsts, seconds, strict=True):
        if not _fits(trial, first, second):
            return None
    return trial


def _fits(mapping: Mapping, first: Type, second: Type) -> bool:
    if second.kind == "param":
        valid, bound = _bind(mapping, first, second)
        if valid:
            return True
        if bound:
            return False
    if first.kind == "param":
        return _bind(mapping, second, first)[0]
    if is_dyn_or_error(first) or is_dyn_or_error(second):
        return True
    if first.kind == "null":
        return second.kind in _NULLABLE
    if second.kind == "null":
        return first.kind in _NULLABLE
    return _same_shape(mapping, first, second)


def _same_shape(mapping: Mapping, first: Type, second: Type) -> bool:
    if first.kind != second.kind:
        return False
    if first.kind == "type":
        return True
    if first.name != second.name or len(first.params) != len(second.params):
        return False
    return all(_fits(mapping, a, b) for a, b in zip(first.params, second.params, strict=True))


def _bind(mapping: Mapping, value: Type, param: Type) -> tuple[bool, bool]:
    """Binds a parameter to a value: (whether it fits, whether the parameter was bound before)."""
    if value == param:
        return True, True
    bound = mapping.get(param.name)
    if bound is not None:
        if value == bound:
            return True, True
        if not _fits(mapping, value, bound):
            return False, True
        wider = most_general(value, bound)
        if _not_inside(mapping, param, wider):
            mapping[param.name] = wider
        return True, True
    if _not_inside(mapping, param, value):
        mapping[param.name] = value
        return True, False
    return False, False


def _not_inside(mapping: Mapping, param: Type, kind: Type) -> bool:
    if param == kind:
        return False
    if kind.kind == "param":
        bound = mapping.get(kind.name)
        return True if bound is None else _not_inside(mapping, param, bound)
    return all(_not_inside(mapping, param, part) for part in kind.params)


def most_general(first: Type, second: Type) -> Type:
    """The less specific of two types that fit each other."""
    return first if _less_specific(first, second) else second


def _less_specific(first: Type, second: Type) -> bool:
    if is_dyn(first) or first.kind == "param":
        return True
    if is_dyn(second) or second.kind == "param" or first.kind != second.kind:
        return False
    if first.kind == "type":
        return True
    if first.name != second.name or len(first.params) != len(second.params):
        return False
    return all(_less_specific(a, b) for a, b in zip(first.params, second.params, strict=True))
