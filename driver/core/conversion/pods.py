# SPDX-License-Identifier: Apache-2.0
"""One pod, or one pod template, converted: what it asks for becomes claims, everything else stays.

Called by `workloads` for files and by gpudra.controller.conversion, which wants to know why a live
pod was not converted. The same rules stand in CEL in the chart's conversion-policy.yaml.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion import queues, words
from gpudra.driver.core.conversion.containers import (
    Foreign,
    foreign_of,
    read_annotations,
    read_container,
)
from gpudra.driver.core.conversion.names import name_of
from gpudra.driver.core.conversion.selection import Selection, field_of, read_selection
from gpudra.driver.core.conversion.shape import check_shape, metadata_of
from gpudra.driver.core.conversion.types import Ask, System

Raw = Mapping[str, Any]
# Says on a converted pod which system's words it had.
CONVERTED = "gpudra.io/converted-from"
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodConversion:
    """What became of a pod.

    Attributes:
        pod: converted; the same content if nothing was asked for.
        asks: container name -> request, in the order of the pod; empty: nothing was asked for.
        system: whose words they were.
        notes: what was dropped or is different now, a sentence each.
    """

    pod: dict[str, Any]
    asks: Mapping[str, Ask]
    system: System
    notes: tuple[str, ...]

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the ResourceClaimTemplates that the pod needs, each once."""
        return tuple(dict.fromkeys(name_of(ask) for ask in self.asks.values()))


def convert_pod(pod: Raw, *, managed: bool = False) -> PodConversion:
    """Converts a pod or a pod template; both have metadata and spec.

    Args:
        pod: as written by a user or received by the API server; not changed.
        managed: queues and groups of other systems become gpudra's.

    Raises:
        InputError: something that is asked for cannot be had; names field and value.
    """
    notes: list[str] = []
    check_shape(pod)
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    places = list(_containers(spec))
    foreign = [foreign_of(container, field) for field, container in places]
    shared = any(key in annotations for key in (words.FRACTION, words.MEMORY))
    asks: dict[str, Ask] = {}
    if shared or any(one.asks for one in foreign):
        chosen = read_selection(annotations)
        asks = _asks(places, foreign, annotations, chosen, notes)
    converted = copy.deepcopy(dict(pod))
    if asks:
        _check_names(spec, asks)
        _apply(converted, asks, _system(foreign, shared=shared), shared=shared)
        notes += _remarks(annotations, spec)
    if asks or spec.get("resourceClaims"):
        notes += queues.convert(converted, managed=managed)
    return PodConversion(
        pod=converted,
        asks=asks,
        system=_system(foreign, shared=shared),
        notes=tuple(notes),
    )


def _containers(spec: Raw) -> Iterator[tuple[str, Raw]]:
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield f"spec.{kind}[{index}]", container


def _asks(
    places: list[tuple[str, Raw]],
    foreign: list[Foreign],
    annotations: Mapping[str, str],
    chosen: Selection,
    notes: list[str],
) -> dict[str, Ask]:
    """Requests by container."""
    of_kai = read_annotations(annotations, chosen)
    used = [one for one in foreign if one.asks]
    if of_kai is not None:
        if used:
            raise _two_systems(used[0], next(iter(used[0].amounts)), System.KAI)
        name = _container_of_kai([container["name"] for _, container in places], annotations)
        return {name: of_kai}
    ours = next((one for one in used if one.has(words.HAMI_RESOURCES)), None)
    theirs = next((one for one in used if one.has(words.VOLCANO_RESOURCES)), None)
    if ours and theirs:
        key = next(key for key in words.VOLCANO_RESOURCES.values() if key in theirs.amounts)
        raise _two_systems(theirs, key, System.HAMI)
    return {
        container["name"]: read_container(one, chosen, _variables(container), notes)
        for (_, container), one in zip(places, foreign, strict=True)
        if one.asks
    }


def _two_systems(where: Foreign, key: str, other: System) -> InputError:
    return InputError(
        f"{str(where.amounts[key])!r} is asked for beside a request of {other}",
        field=where.at(key),
        hint="keep the words of one system",
    )


def _container_of_kai(names: list[str], annotations: Mapping[str, str]) -> str:
    wanted = annotations.get(words.CONTAINER)
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise InputError(
            f"there is no container {wanted!r}",
            field=field_of(words.CONTAINER),
            hint=f"there are {', '.join(names)}",
        )
    return wanted


def _variables(container: Raw) -> dict[str, str]:
    return {one["name"]: str(one.get("value", "")) for one in container.get("env") or ()}


def _system(foreign: list[Foreign], *, shared: bool) -> System:
    if shared:
        return System.KAI
    volcano = any(one.has(words.VOLCANO_RESOURCES) for one in foreign)
    return System.VOLCANO if volcano else System.HAMI


def _check_names(spec: Raw, asks: Mapping[str, Ask]) -> None:
    """The claim of a container is named after it."""
    for index, claim in enumerate(spec.get("resourceClaims") or ()):
        if claim.get("name") in asks:
            raise InputError(
                f"{claim['name']!r} is the name of a container, and of its converted claim",
                field=f"spec.resourceClaims[{index}].name",
                hint="rename the claim",
            )


def _apply(pod: dict[str, Any], asks: Mapping[str, Ask], system: System, *, shared: bool) -> None:
    """Takes the foreign words out and puts claims in."""
    spec = pod["spec"]
    for _, container in _containers(spec):
        if container["name"] in asks:
            _give_claim(container)
    claims = [
        {"name": name, "resourceClaimTemplateName": name_of(ask)} for name, ask in asks.items()
    ]
    spec["resourceClaims"] = [*(spec.get("resourceClaims") or ()), *claims]
    if spec.get("schedulerName") in words.SCHEDULERS:
        spec["schedulerName"] = DEFAULT_SCHEDULER
    metadata = metadata_of(pod)
    metadata["labels"] = {**(metadata.get("labels") or {}), CONVERTED: str(system)}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if not _is_dropped(key, shared=shared)
    }
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations


def _is_dropped(key: str, *, shared: bool) -> bool:
    # "mps" alone is too plain a word to be taken from somebody who may mean something else.
    if key == words.MPS:
        return shared
    return key in words.TRANSLATED or bool(words.STATE.fullmatch(key))


def _give_claim(container: Any) -> None:
    resources = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        kept = {
            key: value
            for key, value in (resources.pop(kind, None) or {}).items()
            if not words.FOREIGN.fullmatch(key)
        }
        if kept:
            resources[kind] = kept
    resources["claims"] = [*(resources.get("claims") or ()), {"name": container["name"]}]
    container["resources"] = resources


def _remarks(annotations: Mapping[str, str], spec: Raw) -> Iterator[str]:
    for key in (words.NODE_POLICY, words.CARD_POLICY):
        ordered = [
            word.strip()
            for word in annotations.get(key, "").split(",")
            if word.strip() in words.NODE_POLICIES
        ]
        if ordered:
            yield (
                f"{field_of(key)}: {','.join(ordered)} is decided for the whole cluster now, by the"
                " scheduler and the policy of the nodes"
            )
    if any(words.STATE.fullmatch(key) for key in annotations):
        yield "what the old scheduler had decided is dropped"
    if spec.get("runtimeClassName") == "nvidia":
        yield "spec.runtimeClassName: the runtime class nvidia is not needed and does no harm"
