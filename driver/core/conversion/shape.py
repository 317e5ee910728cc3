# SPDX-License-Identifier: Apache-2.0
"""Checks that a pod has the shape that `pods` reads, since files hold anything.

Everything else about a pod is for the API server to check.
"""

from collections.abc import Mapping
from typing import Any

from gpudra.api.errors import InputError

_KINDS: Mapping[Any, str] = {dict: "an object", list: "a list", str: "text"}


def check_shape(pod: Mapping[str, Any]) -> None:
    """Checks a pod or a pod template.

    Raises:
        InputError: something is not what it has to be; names the field.
    """
    metadata = _part(pod, "metadata", dict, "")
    for kind in ("labels", "annotations"):
        for key, value in _part(metadata, kind, dict, "metadata").items():
            _check(key, str, f"metadata.{kind}", "write it in quotes")
            _check(value, str, f"metadata.{kind}[{key}]", "write it in quotes")
    spec = _part(pod, "spec", dict, "")
    for kind in ("containers", "initContainers"):
        for index, one in enumerate(_part(spec, kind, list, "spec")):
            _check_container(one, f"spec.{kind}[{index}]")
    for kind in ("resourceClaims", "schedulingGates"):
        for index, one in enumerate(_part(spec, kind, list, "spec")):
            _check(one, dict, f"spec.{kind}[{index}]")


def check_object(raw: Mapping[str, Any]) -> None:
    """Checks an object that may have pod templates, or be a group of pods.

    Raises:
        InputError: something is not what it has to be; names the field.
    """
    metadata = _part(raw, "metadata", dict, "")
    for key in ("name", "namespace"):
        _part(metadata, key, str, "metadata")
    for kind in ("labels", "annotations"):
        for key, value in _part(metadata, kind, dict, "metadata").items():
            _check(key, str, f"metadata.{kind}", "write it in quotes")
            _check(value, str, f"metadata.{kind}[{key}]", "write it in quotes")
    spec = _part(raw, "spec", dict, "")
    for key in ("queue", "schedulerName", "priorityClassName"):
        _part(spec, key, str, "spec")
    for key in ("minAvailable", "minMember"):
        _check_count(spec.get(key), f"spec.{key}")
    for name, count in _part(spec, "minTaskMember", dict, "spec").items():
        _check_count(count, f"spec.minTaskMember[{name}]")
    for key, value in _part(spec, "topologyConstraint", dict, "spec").items():
        _check(value, str, f"spec.topologyConstraint.{key}")
    for index, task in enumerate(_part(spec, "tasks", list, "spec")):
        field = f"spec.tasks[{index}]"
        _check(task, dict, field)
        _check(task.get("name"), str, f"{field}.name")
        _check(task.get("template"), dict, f"{field}.template")
        for key in ("replicas", "minAvailable"):
            _check_count(task.get(key), f"{field}.{key}")


def metadata_of(raw: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object that is being changed; made if there are none."""
    if raw.get("metadata") is None:
        raw["metadata"] = {}
    found: dict[str, Any] = raw["metadata"]
    return found


def _check_count(value: Any, field: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InputError(f"{value!r} is no number of pods", field=field)


def _check_container(one: Any, field: str) -> None:
    _check(one, dict, field)
    _check(one.get("name"), str, f"{field}.name")
    for index, variable in enumerate(_part(one, "env", list, field)):
        _check(variable, dict, f"{field}.env[{index}]")
        _check(variable.get("name"), str, f"{field}.env[{index}].name")
    resources = _part(one, "resources", dict, field)
    for kind in ("limits", "requests"):
        amounts = _part(resources, kind, dict, f"{field}.resources")
        for key, value in amounts.items():
            _check(key, str, f"{field}.resources.{kind}")
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise InputError(
                    f"{value!r} is no amount", field=f"{field}.resources.{kind}[{key}]"
                )
    for index, claim in enumerate(_part(resources, "claims", list, f"{field}.resources")):
        _check(claim, dict, f"{field}.resources.claims[{index}]")


def _part(raw: Mapping[str, Any], name: str, kind: type, within: str) -> Any:
    """A field, which may be missing or null."""
    value = raw.get(name)
    if value is None:
        return kind()
    _check(value, kind, f"{within}.{name}" if within else name)
    return value


def _check(value: Any, kind: type, field: str, hint: str = "") -> None:
    if not isinstance(value, kind):
        raise InputError(f"{value!r} is not {_KINDS[kind]}", field=field, hint=hint)
