# SPDX-License-Identifier: Apache-2.0
"""``gpudra validate``: says what of a file a node would refuse, before it is sent.

Looks at configuration of claims wherever it stands (alone, in claims, templates and classes), at
what claims ask of shares, at NodePolicy and Hardware. The models are those of the agent.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.yamlfile import Document, Step
from gpudra.controller.configcheck import CHECKERS, Checker, Place, Rules
from gpudra.controller.ctl.cluster import DEFAULT_DRIVER
from gpudra.driver.devicelib.files import read_documents

OK, ERROR = 0, 1


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


def _check_model(place: Place) -> Iterator[InputError]:
    """Kinds with a model for the whole object."""
    from gpudra.api.hardware import Hardware
    from gpudra.api.nodepolicy import NodePolicy

    model: type[NodePolicy | Hardware] = (
        NodePolicy if place.raw["kind"] == "NodePolicy" else Hardware
    )
    document = place.document
    assert isinstance(document, Document), "models are for files"
    try:
        Document(data=place.raw, file=document.file, node=document.node).validate(model)
    except InputError as error:
        yield error


_CHECKERS: Mapping[str, Checker] = {
    **CHECKERS,
    "NodePolicy": _check_model,
    "Hardware": _check_model,
}
