# SPDX-License-Identifier: Apache-2.0
"""Asks gpudra and the Go libraries the same CEL question and tells the answers apart.

``verdict`` gives None where both agree: both refuse to compile, or both come to the same worst-case
cost and, per device, to the same value at the same cost, or both to an error. Differences that
docs/decisions/cel-differences.md explains are recognised by ``explained``.
"""

import base64
import math
import struct
from typing import Any

from gpudra.api.attributes import encode_attribute
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device
from gpudra.api.semver import Semver
from gpudra.driver.core.cel import (
    CelCompileError,
    CelCostExceeded,
    CelDevice,
    CelEvaluationError,
    CompiledSelector,
    compile_attribute,
    compile_selector,
)
from gpudra.driver.core.cel.values import (
    MAPS,
    Duration,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    map_items,
    type_name,
)

Json = dict[str, Any]


def question(expression: str, devices: list[Json], *, value: bool, env: str) -> Json:
    """What the oracle's ``cel`` sub-command reads."""
    return {"expr": expression, "env": env, "value": value, "devices": devices}


def describe(value: Any) -> Any:
    """A value in the oracle's notation: [type, content]."""
    kind = type(value)
    if kind is float:
        bits = struct.unpack(">Q", struct.pack(">d", value))[0]
        return ["double", "nan" if math.isnan(value) else f"{bits:x}"]
    if kind in {bool, str} or value is None:
        return [{bool: "bool", str: "string"}.get(kind, "null"), value]
    if kind in {int, Uint}:
        return ["uint" if kind is Uint else "int", str(int(value))]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if kind is tuple:
        return ["list", [describe(item) for item in value]]
    if isinstance(value, MAPS):
        return ["map", ordered([[describe(k), describe(v)] for k, v in map_items(value)])]
    return _describe_rare(value)


def _describe_rare(value: Any) -> Any:
    if isinstance(value, Duration):
        return ["duration", str(value.nanos)]
    if isinstance(value, Timestamp):
        return ["timestamp", f"{value.nanos // 10**9}.{value.nanos % 10**9}"]
    if isinstance(value, Optional):
        return ["optional", describe(value.value) if value.present else None]
    if isinstance(value, Quantity):
        return ["quantity", value.nanos]
    if isinstance(value, Semver):
        return ["semver", str(value)]
    if isinstance(value, TypeValue):
        return ["type", value.name]
    return [type_name(value), str(value)]


def ordered(pairs: list[Any]) -> list[Any]:
    """Entries of a map in a fixed order; neither side promises one."""
    return sorted(pairs, key=repr)


def normalized(described: Any) -> Any:
    """The oracle's notation with what is arbitrary made regular."""
    if not isinstance(described, list) or len(described) != 2:
        return described
    kind, content = described
    if kind == "list":
        return [kind, [normalized(item) for item in content]]
    if kind == "map":
        return [kind, ordered([[normalized(k), normalized(v)] for k, v in content])]
    if kind == "optional" and content is not None:
        return [kind, normalized(content)]
    if kind == "quantity":
        return [kind, _nanos(str(content))]
    if (
        kind == "double"
        and (int(content, 16) >> 52) & 0x7FF == 0x7FF
        and int(content, 16) & (2**52 - 1)
    ):
        return [kind, "nan"]
    return described


def _nanos(text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole + fraction.ljust(9, "0")[:9]) if len(fraction) <= 9 else -1


def ours(expression: str, *, env: str) -> CompiledSelector | CelCompileError:
    """Our compilation."""
    try:
        return compile_selector(expression, list_attributes=env == "stored")
    except CelCompileError as error:
        return error


def to_device(device: Json) -> CelDevice:
    """The oracle's device as ours."""
    return CelDevice.from_device(device["driver"], Device.from_dict(device["device"]))


def verdict(asked: Json, answer: Json) -> str | None:
    """What differs, or None."""
    if asked.get("derived"):
        return _derived_verdict(asked, answer)
    compiled = ours(asked["expr"], env=asked["env"])
    theirs = answer.get("compileError") or answer.get("panic")
    if isinstance(compiled, CelCompileError):
        return None if theirs else f"only we refuse: {compiled}"
    if theirs:
        return f"only they refuse: {theirs}"
    if str(compiled.cost_estimate) != answer["maxCost"]:
        return f"estimate {compiled.cost_estimate}, theirs {answer['maxCost']}"
    for device, result in zip(asked["devices"], answer["results"], strict=True):
        found = _one(compiled, to_device(device), result, value=asked["value"])
        if found:
            return found
    return None


def _derived_verdict(asked: Json, answer: Json) -> str | None:
    """The same for the expression of a derived attribute: the value is what constraints compare."""
    theirs = answer.get("compileError") or answer.get("panic")
    try:
        compiled = compile_attribute(asked["expr"])
    except CelCompileError as error:
        return None if theirs else f"derived, only we refuse: {error}"
    if theirs:
        return f"derived, only they refuse: {theirs}"
    if str(compiled.cost_estimate) != answer["maxCost"]:
        return f"derived, estimate {compiled.cost_estimate}, theirs {answer['maxCost']}"
    for device, result in zip(asked["devices"], answer["results"], strict=True):
        try:
            value = compiled.value_for(to_device(device))
        except CelEvaluationError as error:
            if "error" not in result and "panic" not in result:
                return f"derived, only we fail: {error}; theirs {result}"
            continue
        found = {} if value == () else encode_attribute(value)
        if result.get("value") != found:
            return f"derived: ours {found}, theirs {result}"
    return None


def _matches(compiled: CompiledSelector, device: CelDevice) -> bool | None:
    """What the allocator is told; None for an error."""
    try:
        return compiled.matches(device)
    except CelEvaluationError:
        return None


def _same_limit(error: CelEvaluationError, result: Json) -> str | None:
    """Both fail; the cost limit must be the reason on both sides or on neither."""
    theirs = "cost limit exceeded" in result.get("error", "")
    if theirs == isinstance(error, CelCostExceeded):
        return None
    return f"cost limit: ours {error}; theirs {result}"


def _one(compiled: CompiledSelector, device: CelDevice, result: Json, *, value: bool) -> str | None:
    failed = "error" in result or "panic" in result
    try:
        ask = compiled.value if value else compiled.evaluate
        found, cost = ask(device)
    except CelEvaluationError as error:
        if not value and _matches(compiled, device) is not None:
            return "matches() answers where evaluate() fails"
        if not failed:
            return f"only we fail: {error}; theirs {result.get('value')}"
        return _same_limit(error, result)
    if failed:
        return f"only they fail: {result}; ours {found!r}"
    shown, wanted = (
        (describe(found), normalized(result["value"]))
        if value
        else (found, result.get("value", False))
    )
    if shown != wanted:
        return f"value {shown}, theirs {wanted}"
    if not value and _matches(compiled, device) is not found:
        return f"matches() says otherwise than evaluate(): {found}"
    if str(cost) != result["cost"]:
        return f"cost {cost}, theirs {result['cost']}"
    return None
