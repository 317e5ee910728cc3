# SPDX-License-Identifier: Apache-2.0
"""Every pod template of an object converted, with the templates and groups that it needs.

Called by ``gpudra convert``. Kinds that are not known pass unchanged, with a word if they hold
requests for devices.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion import groups, queues, words
from gpudra.driver.core.conversion.names import name_of
from gpudra.driver.core.conversion.pods import DEFAULT_SCHEDULER, convert_pod
from gpudra.driver.core.conversion.shape import check_object, check_shape, metadata_of
from gpudra.driver.core.conversion.templates import CARD_SIZES, template_of
from gpudra.driver.core.conversion.types import Ask, Cards, Classes

Step = str | int
Raw = Mapping[str, Any]
VOLCANO_BATCH = "batch.volcano.sh"
# kind -> where its pod templates are; * stands for every item of a list.
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"),
        ("spec", "template"),
    ),
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "JobSet": ("spec", "replicatedJobs", "*", "template", "spec", "template"),
    f"{VOLCANO_BATCH}/Job": ("spec", "tasks", "*", "template"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How objects are converted.

    Attributes:
        cards: to take parts of.
        classes: of the driver.
        managed: queues and groups become gpudra's.
    """

    cards: Cards
    classes: Classes
    managed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectConversion:
    """What became of an object.

    Attributes:
        object: converted, or as it was.
        changed: whether it was converted.
        needs: objects that it needs: templates and groups.
        notes: a sentence each.
    """

    object: dict[str, Any]
    changed: bool
    needs: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def convert_object(raw: Raw, settings: Settings) -> ObjectConversion:
    """Converts one object; no List.

    Raises:
        InputError: a request cannot be had; names object, field and value.
    """
    path = _TEMPLATES.get(_kind(raw))
    if path is None:
        return _other(raw, settings)
    try:
        check_object(raw)
        for steps, pod in _places(raw, path):
            _check_pod(pod, steps)
    except InputError as error:
        raise error.within(obj=_title(raw)) from error
    converted = copy.deepcopy(dict(raw))
    if settings.managed:
        _name_queue(converted, path)
    notes: list[str] = []
    asks: dict[str, Ask] = {}
    changed = False
    for steps, pod in list(_places(converted, path)):
        try:
            found = convert_pod(pod, managed=settings.managed)
        except InputError as error:
            raise error.within(_text(steps), obj=_title(raw)) from error
        changed |= found.pod != pod
        notes += found.notes
        asks |= {name_of(ask): ask for ask in found.asks.values()}
        pod.clear()
        pod.update(found.pod)
    needs = list(_templates(raw, asks, settings, notes))
    if changed:
        needs += _grouped(raw, converted, settings, notes)
        _set_scheduler(converted)
    return ObjectConversion(
        object=converted if changed else dict(raw),
        changed=changed,
        needs=tuple(needs),
        notes=tuple(dict.fromkeys(notes)),
    )


def _check_pod(pod: Raw, steps: tuple[Step, ...]) -> None:
    try:
        check_shape(pod)
    except InputError as error:
        raise error.within(_text(steps)) from error


def _grouped(
    raw: Raw, converted: dict[str, Any], settings: Settings, notes: list[str]
) -> list[dict[str, Any]]:
    pods = [pod for _, pod in _places(converted, _TEMPLATES[_kind(raw)])]
    try:
        return list(groups.finish(converted, pods, managed=settings.managed, notes=notes))
    except InputError as error:
        raise error.within(obj=_title(raw)) from error


def _kind(raw: Raw) -> str:
    group, _, _ = str(raw.get("apiVersion", "")).partition("/")
    kind = str(raw.get("kind", ""))
    return f"{group}/{kind}" if group == VOLCANO_BATCH else kind


def _title(raw: Raw) -> str:
    metadata = raw.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
    return f"{raw.get('kind', 'object')!s} {name}".strip()


def _templates(
    raw: Raw, asks: Mapping[str, Ask], settings: Settings, notes: list[str]
) -> Iterator[dict[str, Any]]:
    namespace = (raw.get("metadata") or {}).get("namespace", "")
    for name, ask in asks.items():
        try:
            found = template_of(
                ask, cards=settings.cards, classes=settings.classes, namespace=namespace
            )
        except InputError as error:
            raise error.within(f"template {name}", obj=_title(raw)) from error
        if ask.needs_cards:
            sizes = found["metadata"]["annotations"][CARD_SIZES]
            notes.append(f"template {name}: sizes considered are {sizes}; no other card is taken")
        yield found


def _places(raw: Any, path: Sequence[str]) -> Iterator[tuple[tuple[Step, ...], dict[str, Any]]]:
    """The pod templates with their paths; what has another shape is left to the API server."""
    if not path:
        if isinstance(raw, dict):
            yield (), raw
        return
    step, rest = path[0], path[1:]
    if step == "*":
        items: Iterator[tuple[Step, Any]] = iter(enumerate(raw if isinstance(raw, list) else ()))
    else:
        items = iter([(step, raw[step])] if isinstance(raw, dict) and step in raw else [])
    for key, value in items:
        for steps, found in _places(value, rest):
            yield (key, *steps), found


def _text(steps: Sequence[Step]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


def _name_queue(raw: dict[str, Any], path: Sequence[str]) -> None:
    """A queue that the workload names is named by its pods: each is admitted for itself."""
    if not path:
        return
    metadata = raw.get("metadata") or {}
    named: list[tuple[str, str, str]] = []
    for kind, key in queues.QUEUES:
        value = (metadata.get(kind) or {}).get(key)
        if value is not None:
            named.append((kind, key, value))
            metadata[kind] = {name: text for name, text in metadata[kind].items() if name != key}
            if not metadata[kind]:
                del metadata[kind]
    spec = raw.get("spec") or {}
    if _kind(raw).startswith(VOLCANO_BATCH) and spec.get("queue"):
        named.append((queues.ANNOTATIONS, queues.QUEUES[-1][1], spec.pop("queue")))
    for _, pod in _places(raw, path):
        inside = metadata_of(pod)
        for kind, key, value in named:
            inside[kind] = {key: value, **(inside.get(kind) or {})}


def _set_scheduler(raw: dict[str, Any]) -> None:
    """A Volcano Job hands its scheduler down to its pods."""
    spec = raw.get("spec") or {}
    if spec.get("schedulerName") in words.SCHEDULERS:
        spec["schedulerName"] = DEFAULT_SCHEDULER


def _other(raw: Raw, settings: Settings) -> ObjectConversion:
    """An object of a kind without pod templates, or of one that we do not know."""
    group = groups.convert_group(raw) if settings.managed else None
    if group is not None:
        note = f"{raw['apiVersion']} {_title(raw)} is a PodGroup of gpudra.io now"
        return ObjectConversion(object=group, changed=True, needs=(), notes=(note,))
    found = sorted(set(_foreign_keys(raw)))
    notes: tuple[str, ...] = ()
    if found:
        notes = (f"{_title(raw)} is not converted and holds {', '.join(found)}",)
    return ObjectConversion(object=dict(raw), changed=False, needs=(), notes=notes)


def _foreign_keys(raw: Any) -> Iterator[str]:
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            # ResourceQuotas count limits and requests by these names.
            word = str(key).removeprefix("limits.").removeprefix("requests.")
            if words.FOREIGN.fullmatch(word):
                yield str(key)
            yield from _foreign_keys(value)
    elif isinstance(raw, list):
        for item in raw:
            yield from _foreign_keys(item)
