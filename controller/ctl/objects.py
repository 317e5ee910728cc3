# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects from files: YAML of many documents, JSON, and ``List`` objects.

Shared by the commands that answer from files (``allocate``, ``explain -f``). A file that is not
YAML, an object without kind or name, an unknown version and a double object are errors that name
file, object and field. A ResourceSlice that cannot be read is not: it makes its own pool unusable,
as it would in a cluster, and is reported.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpudra.api.codec import ApiObject
from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import (
    API_VERSION,
    GROUP,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gpudra.controller.ctl.slicecheck import check_claim, check_slice
from gpudra.driver.core.allocator import Node, unreadable_slice

Obj = dict[str, Any]
T = TypeVar("T", bound=ApiObject)

_MAX_DEPTH = 200
_MAX_VALUES = 20_000_000  # after aliases are followed: a file of a few lines can mean gigabytes
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")


@dataclass(slots=True)
class Source:
    """One object as it stood in a file."""

    raw: Obj
    file: str

    @property
    def kind(self) -> str:
        """``ResourceClaim`` and so on."""
        return str(self.raw["kind"])

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """metadata.namespace, or an empty text."""
        return str(self.raw["metadata"].get("namespace") or "")

    @property
    def label(self) -> str:
        """How messages name the object."""
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}"


@dataclass(slots=True)
class ObjectSet:
    """What the files hold.

    Attributes:
        sources: every object as read, in order; unknown kinds are kept for writing back.
        warnings: what does not keep the rest from being used, one sentence each.
    """

    sources: list[Source] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    claims: list[ResourceClaim] = field(default_factory=list)
    rules: list[DeviceTaintRule] = field(default_factory=list)
    pods: list[Obj] = field(default_factory=list)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def load_objects(files: Iterable[str]) -> ObjectSet:
    """Reads files (``-`` is standard input).

    Raises:
        InputError: a file cannot be read, or an object in it cannot be used; file, object and field
            are named.
    """
    found = ObjectSet()
    seen: dict[tuple[str, str, str], str] = {}
    for file in files:
        for raw in _documents(file):
            for source in _flatten(raw, file):
                _check_new(source, seen)
                found.sources.append(source)
                _decode(source, found)
    return found


def objects_of(raws: Iterable[Obj], origin: str = "cluster") -> ObjectSet:
    """The same from objects that a server has sent."""
    found = ObjectSet()
    for raw in raws:
        source = Source(raw, origin)
        found.sources.append(source)
        _decode(source, found)
    return found


# --- text to objects ------------------------------------------------------------------------


def _documents(file: str) -> Iterator[Any]:
    text = _read(file)
    if text.lstrip()[:1] == "{":
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            pass  # a flow mapping, or several documents: both are YAML
        else:
            return
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            _check_shape(document, file)
            yield document
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        what = getattr(error, "problem", None) or str(error)
        raise InputError(f"is not YAML: {what}", file=file, line=line) from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"cannot be read as YAML: {error}", file=file) from error


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", file=file) from error


_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """YAML as Kubernetes reads it: times stay text, and a key may stand only once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
    for first, entries in _BaseLoader.yaml_implicit_resolvers.items()
}


def _check_shape(document: Any, file: str) -> None:
    """Refuses documents that contain themselves, are too deep, or unfold to too much."""
    left = _MAX_VALUES
    open_ids: list[int] = []
    stack: list[tuple[Any, bool]] = [(document, False)]
    while stack:
        value, leaving = stack.pop()
        if leaving:
            open_ids.pop()
            continue
        left -= 1
        if left < 0:
            raise InputError("unfolds to too many values", file=file)
        if not isinstance(value, dict | list):
            continue
        if id(value) in open_ids:
            raise InputError("a value contains itself", file=file)
        if len(open_ids) >= _MAX_DEPTH:
            raise InputError(f"is nested deeper than {_MAX_DEPTH} levels", file=file)
        open_ids.append(id(value))
        stack.append((value, True))
        children = value.values() if isinstance(value, dict) else value
        stack.extend((child, False) for child in children)


def _flatten(raw: Any, file: str) -> Iterator[Source]:
    """The objects of a document: itself, or the items of a List."""
    if raw is None:
        return
    if not isinstance(raw, dict):
        raise InputError(
            f"holds {type(raw).__name__} instead of a Kubernetes object",
            file=file,
            hint="an object begins with apiVersion and kind",
        )
    _check_header(raw, file)
    items = raw.get("items")
    if raw["kind"].endswith("List") and (items is None or isinstance(items, list)):
        for item in items or ():
            if isinstance(item, dict) and raw["kind"] != "List":
                # Servers leave these two out of the items of a typed list.
                item.setdefault("apiVersion", raw["apiVersion"])
                item.setdefault("kind", raw["kind"].removesuffix("List"))
            yield from _flatten(item if item is not None else [], file)
        return
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        raise InputError("is required", file=file, obj=raw["kind"], field="metadata")
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError("is required", file=file, obj=raw["kind"], field="metadata.name")
    if not isinstance(metadata.get("namespace"), str | None):
        raise InputError(
            "is not text",
            file=file,
            obj=f"{raw['kind']} {metadata['name']}",
            field="metadata.namespace",
        )
    yield Source(raw, file)


def _check_header(raw: Obj, file: str) -> None:
    for key in ("apiVersion", "kind"):
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise InputError(
                "is required",
                file=file,
                field=key,
                obj=str(raw.get("kind") or "an object"),
                hint="this is not a Kubernetes object",
            )
    group, _, version = raw["apiVersion"].rpartition("/")
    if not _VERSION.fullmatch(version):
        raise InputError(
            f"{raw['apiVersion']!r} is not a version of an API",
            file=file,
            obj=raw["kind"],
            field="apiVersion",
        )
    if group == GROUP and raw["apiVersion"] != API_VERSION:
        raise InputError(
            f"{raw['apiVersion']} is not supported",
            file=file,
            obj=raw["kind"],
            field="apiVersion",
            hint=f"convert the object to {API_VERSION} (kubectl get -o yaml does that)",
        )


def _check_new(source: Source, seen: dict[tuple[str, str, str], str]) -> None:
    key = (source.raw["apiVersion"].partition("/")[0] + source.kind, source.namespace, source.name)
    if key in seen:
        raise InputError(f"stands twice, also in {seen[key]}", file=source.file, obj=source.label)
    seen[key] = source.file


# --- objects to types -----------------------------------------------------------------------


def _decode(source: Source, found: ObjectSet) -> None:
    if source.raw["apiVersion"] == API_VERSION:
        if source.kind == "ResourceSlice":
            found.slices.append(_slice(source, found))
        elif source.kind == "DeviceClass":
            found.classes.append(_typed(source, DeviceClass))
        elif source.kind == "ResourceClaim":
            found.claims.append(_claim(source))
        elif source.kind == "DeviceTaintRule":
            found.rules.append(_typed(source, DeviceTaintRule))
    elif source.raw["apiVersion"] == "v1":
        if source.kind == "Node":
            found.nodes.append(_node(source))
        elif source.kind == "Namespace":
            found.namespaces[source.name] = _labels(source)
        elif source.kind == "Pod":
            found.pods.append(source.raw)


def _typed(source: Source, kind: type[T]) -> T:
    try:
        return kind.from_dict(source.raw)
    except InputError as error:
        raise error.within(obj=source.label, file=source.file) from error


def _claim(source: Source) -> ResourceClaim:
    claim = _typed(source, ResourceClaim)
    try:
        check_claim(claim)
    except InputError as error:
        raise error.within(obj=source.label, file=source.file) from error
    return claim


def _slice(source: Source, found: ObjectSet) -> ResourceSlice:
    """The slice, or one that makes its pool unusable and says why."""
    try:
        decoded = ResourceSlice.from_dict(source.raw)
    except InputError as error:
        located = error.within(obj=source.label, file=source.file)
        rest = _readable_part(source)
        if rest is None:
            raise located from error
        found.warnings.append(str(located))
        generation = rest.spec.pool.generation or None
        return unreadable_slice(rest, f"slice {source.name}: {error}", generation=generation)
    try:
        check_slice(decoded)
    except InputError as error:
        found.warnings.append(str(error.within(obj=source.label, file=source.file)))
        return unreadable_slice(
            decoded, f"slice {source.name}: {error}", generation=decoded.spec.pool.generation
        )
    return decoded


def _readable_part(source: Source) -> ResourceSlice | None:
    """Driver, pool and place of a slice of which something else cannot be read."""
    spec = source.raw.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    pool = spec.get("pool")
    pool = pool if isinstance(pool, dict) else {}
    kept = {key: spec[key] for key in ("driver", "nodeName", "nodeSelector") if key in spec}
    for pool_keys in (("name", "generation"), ("name",)):
        kept["pool"] = {key: pool[key] for key in pool_keys if key in pool}
        for dropped in ((), ("nodeSelector",), ("nodeName", "nodeSelector")):
            part = {key: value for key, value in kept.items() if key not in dropped}
            try:
                return ResourceSlice.from_dict({"metadata": {"name": source.name}, "spec": part})
            except InputError:
                continue
    return None


def _labels(source: Source) -> Mapping[str, str]:
    labels = source.raw["metadata"].get("labels") or {}
    if not isinstance(labels, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in labels.items()
    ):
        raise InputError(
            "is not a map of texts", file=source.file, obj=source.label, field="metadata.labels"
        )
    return labels


def _node(source: Source) -> Node:
    status = source.raw.get("status")
    features: Sequence[Any] = ()
    if isinstance(status, dict) and isinstance(status.get("declaredFeatures"), list):
        features = status["declaredFeatures"]
    return Node(source.name, _labels(source), frozenset(map(str, features)))
