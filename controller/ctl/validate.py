# SPDX-License-Identifier: Apache-2.0
"""``gpudra validate``: says what of a file a node would refuse, before it is sent.

Looks at configuration of claims wherever it stands (alone, in claims, templates and classes), at
what claims ask of shares, at NodePolicy and Hardware. The models are those of the agent.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.yamlfile import Document, Step
from gpudra.controller.ctl.cluster import DEFAULT_DRIVER
from gpudra.driver.devicelib.files import read_documents

OK, ERROR = 0, 1
MIB = 2**20
_SHARE_CLASS = "share."
_CONFIGS = ("GpuConfig", "MigConfig", "ShareConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the command line adds to the models.

    Attributes:
        driver: whose configuration is looked at.
        allowed: isolation that claims may ask for; None: any.
        uuids: of the cards that exist; None: not known.
    """

    driver: str = DEFAULT_DRIVER
    allowed: frozenset[str] | None = None
    uuids: frozenset[str] | None = None


@dataclass(slots=True)
class Findings:
    """What was found. ``checked`` counts objects that have rules here."""

    problems: list[InputError] = field(default_factory=list)
    checked: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """-f, --driver, --allow, --hardware, --node."""
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML or JSON of any number of objects; - is standard input; may come several times",
    )
    parser.add_argument(
        "--driver", default=DEFAULT_DRIVER, help=f"name of the driver (default {DEFAULT_DRIVER})"
    )
    parser.add_argument(
        "--allow",
        metavar="LIST",
        help="isolation that nodes allow, some of mps,hami-core,time-slice,none (default: all)",
    )
    parser.add_argument(
        "--hardware",
        metavar="SOURCE",
        help="profile or Hardware file: uuids of GPUs have to be among its own",
    )
    parser.add_argument(
        "--node", default="node-1", help="with --hardware: name of the node (default node-1)"
    )


def run(args: argparse.Namespace) -> int:
    """Prints every problem on stderr; 1 if there is one."""
    rules = Rules(driver=args.driver, allowed=_allowed(args.allow), uuids=_uuids(args))
    findings = Findings()
    for file in args.filename:
        for document in read_documents(Path("/dev/stdin" if file == "-" else file)):
            check(document, rules, findings)
    for problem in findings.problems:
        print(problem, file=sys.stderr)
    if findings.problems:
        return ERROR
    print(f"{findings.checked} objects are valid")
    return OK


def _allowed(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    from gpudra.api.config.v1alpha1 import Isolation

    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    unknown = sorted(words - {one.value for one in Isolation})
    if unknown:
        raise InputError(
            f"{unknown[0]!r} is no isolation",
            field="--allow",
            hint=f"use some of {', '.join(Isolation)}",
        )
    return words


def _uuids(args: argparse.Namespace) -> frozenset[str] | None:
    if args.hardware is None:
        return None
    from gpudra.driver.devicelib.simulated.catalog import load_hardware
    from gpudra.driver.devicelib.simulated.model import build_inventory

    inventory = build_inventory(load_hardware(args.hardware), node_name=args.node)
    return frozenset(gpu.uuid for gpu in inventory.gpus if gpu.uuid)


def check(document: Document, rules: Rules, findings: Findings) -> None:
    """Everything that one document holds."""
    for path, raw in _objects(document.data, ()):
        checker = _CHECKERS.get(str(raw.get("kind")))
        if checker is None:
            continue
        findings.checked += 1
        findings.problems += checker(Place(document, path, rules))


def _objects(raw: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """The object itself, or the items of a List."""
    if not isinstance(raw, Mapping):
        return
    items = raw.get("items")
    if str(raw.get("kind")).endswith("List") and isinstance(items, Sequence):
        for index, item in enumerate(items):
            yield from _objects(item, (*path, "items", index))
        return
    yield path, raw


@dataclass(frozen=True, slots=True)
class Place:
    """Something in a document, and the rules for it."""

    document: Document
    path: tuple[Step, ...]
    rules: Rules

    @property
    def raw(self) -> Any:
        """What stands there; None for nothing."""
        return _at(self.document.data, self.path)

    def at(self, *steps: Step) -> "Place":
        """Something inside."""
        return Place(self.document, (*self.path, *steps), self.rules)

    def items(self) -> "Iterator[Place]":
        """The objects of a list."""
        found = self.raw
        for index, item in enumerate(found if isinstance(found, list) else ()):
            if isinstance(item, Mapping):
                yield self.at(index)

    def error(self, what: str, hint: str = "") -> InputError:
        """An error about it."""
        return self.document.error(what, self.path, hint)


Checker = Callable[[Place], Iterator[InputError]]


def _check_config(place: Place) -> Iterator[InputError]:
    """One configuration, alone or inside a claim."""
    from gpudra.api.config.v1alpha1 import decode_user

    allowed, uuids = place.rules.allowed, place.rules.uuids
    try:
        config = decode_user(place.raw)
    except InputError as error:
        steps = () if error.field == "parameters" else error.field.split(".")
        yield place.at(*steps).error(error.what, error.hint)
        return
    isolation = config.sharing.isolation
    if isolation is not None and allowed is not None and isolation not in allowed:
        yield place.at("sharing", "isolation").error(
            f"isolation {isolation} is not allowed",
            f"use some of {', '.join(sorted(allowed))}" if allowed else "",
        )
    limits = getattr(config.sharing, "mps", None)
    for uuid in limits.pinned_memory_limits if limits else ():
        if uuids is not None and uuid not in uuids:
            where = place.at("sharing", "mps", "pinnedMemoryLimits", uuid)
            yield where.error("there is no such GPU")


def _check_claim(place: Place) -> Iterator[InputError]:
    yield from _check_devices(place.at("spec", "devices"))


def _check_template(place: Place) -> Iterator[InputError]:
    yield from _check_devices(place.at("spec", "spec", "devices"))


def _check_class(place: Place) -> Iterator[InputError]:
    yield from _check_configs(place.at("spec", "config"), None)


def _check_devices(place: Place) -> Iterator[InputError]:
    names: set[str] = set()
    for request in place.at("requests").items():
        name = request.raw.get("name")
        names.add(str(name))
        yield from _check_request(request.at("exactly"))
        for sub in request.at("firstAvailable").items():
            names.add(f"{name}/{sub.raw.get('name')}")
            yield from _check_request(sub)
    yield from _check_configs(place.at("config"), names)


def _check_request(place: Place) -> Iterator[InputError]:
    """What a request takes of a share: no zero, no odd units, per cent as per cent."""
    if not str(place.at("deviceClassName").raw).startswith(_SHARE_CLASS):
        return
    amounts = place.at("capacity", "requests")
    for name, text in amounts.raw.items() if isinstance(amounts.raw, Mapping) else ():
        problem_of = _AMOUNTS.get(str(name).removeprefix(f"{place.rules.driver}/"))
        problem = problem_of(text) if problem_of else ""
        if problem:
            yield amounts.at(name).error(problem)


def _check_configs(place: Place, requests: set[str] | None) -> Iterator[InputError]:
    for config in place.items():
        if config.at("opaque", "driver").raw != place.rules.driver:
            continue
        names = config.at("requests")
        for index, name in enumerate(names.raw if isinstance(names.raw, list) else ()):
            if requests is not None and str(name) not in requests:
                yield names.at(index).error(f"there is no request {name!r}")
        yield from _check_config(config.at("opaque", "parameters"))


def _check_model(place: Place) -> Iterator[InputError]:
    """Kinds with a model for the whole object."""
    from gpudra.api.hardware import Hardware
    from gpudra.api.nodepolicy import NodePolicy

    model: type[NodePolicy | Hardware] = (
        NodePolicy if place.raw["kind"] == "NodePolicy" else Hardware
    )
    document = place.document
    try:
        Document(data=place.raw, file=document.file, node=document.node).validate(model)
    except InputError as error:
        yield error


def _memory_problem(text: Any) -> str:
    amount = _quantity(text)
    if amount is None:
        return f"{text!r} is not an amount, write it as 512Mi or 10Gi"
    if amount.nanos <= 0:
        return f"{text} of memory is no share, ask for 1Mi or more"
    if not amount.is_integer() or amount.as_integer() % MIB:
        return f"{text} is no whole number of MiB, write it in Mi or Gi"
    return ""


def _compute_problem(text: Any) -> str:
    amount = _quantity(text)
    if amount is None or not amount.is_integer() or not 0 <= amount.as_integer() <= 100:
        return f"{text!r} is not in whole per cent of a GPU, from 0 (no limit) to 100"
    return ""


def _quantity(text: Any) -> Quantity | None:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        return Quantity.parse(text)
    except InputError:
        return None


def _at(raw: Any, path: Sequence[Step]) -> Any:
    for step in path:
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(raw, list) and isinstance(step, int) and step < len(raw):
            raw = raw[step]
        else:
            return None
    return raw


_AMOUNTS: Mapping[str, Callable[[Any], str]] = {
    "memory": _memory_problem,
    "compute": _compute_problem,
}
_CHECKERS: Mapping[str, Checker] = {
    **dict.fromkeys(_CONFIGS, _check_config),
    "ResourceClaim": _check_claim,
    "ResourceClaimTemplate": _check_template,
    "DeviceClass": _check_class,
    "NodePolicy": _check_model,
    "Hardware": _check_model,
}
