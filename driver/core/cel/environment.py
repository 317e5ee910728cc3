# SPDX-License-Identifier: Apache-2.0
"""What an expression may use: the ``device`` variable, functions and type names.

Two environments exist, as in k8s.io/dynamic-resource-allocation/cel at 1.37. *Stored* is what the
scheduler compiles with: attributes are dynamic, ``includes()`` exists. *New* is what the API server
admits without the list gate: attributes cannot be looped over.
"""

from dataclasses import dataclass
from functools import cache

from gpudra.driver.core.cel.declarations import Function, merge
from gpudra.driver.core.cel.library import (
    authorizer,
    conversions,
    format_names,
    format_string,
    lists,
    network,
    operators,
    optionals,
    quantity,
    regex,
    semver,
    strings,
    timestamps,
    url,
)
from gpudra.driver.core.cel.types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    NULL,
    QUANTITY,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    B,
    Type,
    list_of,
    map_of,
    optional_of,
    type_of,
)

# Bounds that the cost estimate relies on (types.go of resource.k8s.io, §1.7 of the API).
MAX_DRIVER = 63
MAX_DOMAIN = 63
MAX_ID = 32
MAX_VALUE = 64
MAX_NAMES = 32

_MODULES = (
    operators, conversions, optionals, strings, format_string, regex, lists, quantity, semver,
    network, url, format_names, timestamps, authorizer,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Environment:
    """One set of rules.

    Attributes:
        functions: by name.
        fields: static types of the fields of ``device``.
        type_names: type names usable as values.
        attribute: static type of one attribute; also a legal type of the whole expression.
    """

    functions: dict[str, Function]
    fields: dict[str, Type]
    type_names: dict[str, Type]
    attribute: Type


def _type_names() -> dict[str, Type]:
    kinds = [
        BOOL, BYTES, DOUBLE, DURATION, INT, list_of(A), map_of(A, B), NULL, STRING, TIMESTAMP,
        type_of(), UINT, optional_of(B), IP, CIDR,
    ]  # fmt: skip
    return {kind.name: type_of(kind) for kind in kinds}


@cache
def environment(*, list_attributes: bool) -> Environment:
    """The environment of stored (``list_attributes``) or of new expressions."""
    functions = [function for module in _MODULES for function in module.FUNCTIONS]
    attribute = DYN if list_attributes else ANY
    if list_attributes:
        functions.append(lists.INCLUDES)
    return Environment(
        functions=merge(functions),
        fields={
            "driver": STRING,
            "allowMultipleAllocations": BOOL,
            "attributes": map_of(STRING, map_of(STRING, attribute)),
            "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
        },
        type_names=_type_names(),
        attribute=attribute,
    )
