# SPDX-License-Identifier: Apache-2.0
"""Authorization functions.

They are declared in the API server's base environment, so they type-check on dynamic values, but a
device selector has no authorizer to call them on: at run time they always fail.
"""

from gpudra.driver.core.cel.declarations import Function, Overload, method
from gpudra.driver.core.cel.errors import no_overload
from gpudra.driver.core.cel.types import BOOL, STRING, Type
from gpudra.driver.core.cel.values import Value

_AUTHORIZER, _PATH, _GROUP, _RESOURCE, _DECISION = (
    Type("struct", f"kubernetes.authorization.{name}")
    for name in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
)


def _never(*args: Value) -> Value:
    raise no_overload("an authorization function", *args)


def _method(name: str, target: Type, strings: int, result: Type) -> Overload:
    return method(name, [target, *[STRING] * strings], result, _never)


_SIGNATURES = {
    "path": [("authorizer_path", _AUTHORIZER, 1, _PATH)],
    "group": [("authorizer_group", _AUTHORIZER, 1, _GROUP)],
    "serviceAccount": [("authorizer_serviceaccount", _AUTHORIZER, 2, _AUTHORIZER)],
    "resource": [("groupcheck_resource", _GROUP, 1, _RESOURCE)],
    "subresource": [("resourcecheck_subresource", _RESOURCE, 1, _RESOURCE)],
    "namespace": [("resourcecheck_namespace", _RESOURCE, 1, _RESOURCE)],
    "name": [("resourcecheck_name", _RESOURCE, 1, _RESOURCE)],
    "check": [
        ("pathcheck_check", _PATH, 1, _DECISION),
        ("resourcecheck_check", _RESOURCE, 1, _DECISION),
    ],
    "errored": [("decision_errored", _DECISION, 0, BOOL)],
    "error": [("decision_error", _DECISION, 0, STRING)],
    "allowed": [("decision_allowed", _DECISION, 0, BOOL)],
    "reason": [("decision_reason", _DECISION, 0, STRING)],
    "fieldSelector": [("authorizer_fieldselector", _RESOURCE, 1, _RESOURCE)],
    "labelSelector": [("authorizer_labelselector", _RESOURCE, 1, _RESOURCE)],
}

FUNCTIONS: list[Function] = [
    Function(name, tuple(_method(*signature) for signature in signatures))
    for name, signatures in _SIGNATURES.items()
]
