# SPDX-License-Identifier: Apache-2.0
"""``gpudra convert``: files written for HAMi, KAI Scheduler, Volcano or Kueue, for gpudra.

Objects go to stdout in the order of the file, each before it with what it needs: claim templates
and, with ``--managed``, PodGroups. What was done stands in comments and on stderr. If something
cannot be had, nothing is printed and every refusal is named: half a conversion helps nobody.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.controller.ctl import convertfile, printers
from gpudra.controller.ctl.cluster import DEFAULT_DRIVER, add_cluster_arguments
from gpudra.controller.ctl.main import OK, UNSATISFIABLE
from gpudra.driver.core.conversion.live import cards_of, sizes_in
from gpudra.driver.core.conversion.templates import MIB, SAY_CARDS
from gpudra.driver.core.conversion.types import Cards, Classes
from gpudra.driver.core.conversion.workloads import ObjectConversion, Settings, convert_object

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient


@dataclass
class _Output:
    """What is to be printed.

    Attributes:
        documents: text of YAML documents, comments included.
        objects: the same as data.
        notes: for stderr.
        refusals: what cannot be had.
    """

    documents: list[str] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[InputError] = field(default_factory=list)
    made: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, one: dict[str, Any], comments: Sequence[str] = ()) -> None:
        """An object with comments before it."""
        self.objects.append(one)
        head = [f"# gpudra convert: {comment}" for comment in comments]
        self.documents.append("\n".join([*head, convertfile.yaml_text(one)]))

    def keep(self, text: str, objects: Sequence[dict[str, Any]]) -> None:
        """A document as it came."""
        self.objects += objects
        self.documents.append(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML or JSON of any number of objects; - is standard input; may come several times",
    )
    parser.add_argument(
        "--managed",
        action="store_true",
        help="for managed mode: queues, groups and topology become gpudra's, too",
    )
    parser.add_argument(
        "--driver", default=DEFAULT_DRIVER, help=f"name of the driver (default {DEFAULT_DRIVER})"
    )
    cards = parser.add_mutually_exclusive_group()
    cards.add_argument(
        "--card-memory",
        metavar="LIST",
        help="memory of the cards of which requests can be a part, such as 40960Mi,81559Mi",
    )
    cards.add_argument(
        "--hardware",
        action="append",
        metavar="SOURCE",
        help="profile or Hardware file of the nodes, for the same; may come several times",
    )
    cards.add_argument(
        "--from-cluster", action="store_true", help="look for the cards in the cluster"
    )
    add_cluster_arguments(parser)
    printers.add_output_argument(parser, (printers.YAML, printers.JSON))


def run(args: argparse.Namespace) -> int:
    """Prints the converted objects; 3 if something cannot be had."""
    settings = Settings(
        cards=_cards(args), classes=Classes(driver=args.driver), managed=args.managed
    )
    output = _Output()
    for file in args.filename:
        for part in convertfile.read_parts(file):
            _convert(part, settings, output)
    for refusal in output.refusals:
        print(f"refused: {refusal}{_how(refusal)}", file=sys.stderr)
    if output.refusals:
        return UNSATISFIABLE
    for note in dict.fromkeys(output.notes):
        print(note, file=sys.stderr)
    if args.output == printers.JSON:
        printers.print_objects(output.objects, printers.JSON)
    elif output.documents:
        print("\n---\n".join(output.documents))
    return OK


def _how(refusal: InputError) -> str:
    options = "--card-memory, --hardware or --from-cluster"
    return f" by {options}" if refusal.hint == SAY_CARDS else ""


def _convert(part: convertfile.Part, settings: Settings, output: _Output) -> None:
    """One document. Of a List that holds something to convert every item becomes a document."""
    found: list[ObjectConversion] = []
    for raw in part.objects():
        try:
            found.append(convert_object(raw, settings))
        except InputError as error:
            output.refusals.append(convertfile.located(error, part.document))
    for one in found:
        output.notes += [f"{_title(one)}: {note}" for note in one.notes]
    if not any(one.changed for one in found):
        output.keep(part.text, [one.object for one in found])
        return
    for one in found:
        for needed in one.needs:
            _need(needed, output)
        output.add(one.object, tuple(_comments(one)))


def _need(needed: dict[str, Any], output: _Output) -> None:
    """Equal requests share a template, so it may be there already."""
    metadata = needed["metadata"]
    key = (needed["kind"], metadata.get("namespace", ""), metadata["name"])
    if key not in output.made:
        output.made.add(key)
        output.add(needed)


def _comments(one: ObjectConversion) -> Iterator[str]:
    if not one.changed:
        return
    names = [
        needed["metadata"]["name"]
        for needed in one.needs
        if needed["kind"] == "ResourceClaimTemplate"
    ]
    if names:
        yield f"requests are claims now, by {', '.join(names)}"
    yield from one.notes


def _title(one: ObjectConversion) -> str:
    metadata = one.object.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
    return f"{one.object['kind']} {name}".strip()


def _cards(args: argparse.Namespace) -> Cards:
    if args.card_memory is not None:
        return Cards(shares=_sizes(args.card_memory))
    if args.hardware:
        from gpudra.controller.ctl.slices import slices_of_hardware
        from gpudra.driver.core.forms import EVERYTHING

        return cards_of(
            sizes_in(one.to_dict())
            for source in args.hardware
            for one in slices_of_hardware(
                source, driver=args.driver, node_name="node", policy=EVERYTHING
            )
        )
    if args.from_cluster:
        from gpudra.controller.ctl.cluster import ask, list_slices

        async def question(client: "KubeClient") -> list[dict[str, Any]]:
            return await list_slices(client, args.driver)

        return cards_of(sizes_in(one) for one in ask(args, question))
    return Cards()


def _sizes(text: str) -> tuple[int, ...]:
    found = set()
    for word in text.split(","):
        try:
            size = Quantity.parse(word.strip()).as_integer() // MIB
        except InputError as error:
            raise error.within("--card-memory") from error
        if size < 1:
            raise InputError(
                f"{word.strip()!r} is no memory of a card",
                field="--card-memory",
                hint="write it as 81559Mi or 80Gi",
            )
        found.add(size)
    return tuple(sorted(found))
