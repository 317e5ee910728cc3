# SPDX-License-Identifier: Apache-2.0
"""``--watch``: prints the answer again whenever what it is made of changes.

Called by the commands that show live objects. On a terminal each answer takes the place of the one
before; elsewhere answers follow one another, parted by an empty line.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import ForbiddenError, NotFoundError
from gpudra.controller.ctl import cluster

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient
    from gpudra.driver.kube.reflector import Reflector
    from gpudra.driver.kube.resources import Resource

# A pool of nine slices changes nine times in a row.
_SETTLE_SECONDS = 0.3
_CLEAR = "\x1b[H\x1b[2J"

Obj = dict[str, Any]
Show = Callable[[Sequence[list[Obj]]], None]


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of objects that an answer is made of.

    Attributes:
        resource: the kind.
        namespace: None for all.
        field_selector: as for kubectl.
        optional: where it is not served or may not be read, there is none.
    """

    resource: "Resource"
    namespace: str | None = None
    field_selector: str = ""
    optional: bool = False


def add_watch_argument(parser: argparse.ArgumentParser) -> None:
    """``-w``, as kubectl has it."""
    parser.add_argument(
        "-w", "--watch", action="store_true", help="print again on every change, until Ctrl-C"
    )


def follow(args: argparse.Namespace, sources: Sequence[Source], show: Show) -> None:
    """Shows the answer now and after every change, until interrupted.

    Args:
        args: of the command, with the options of the cluster.
        sources: what is read.
        show: prints the answer for the objects of each source.

    Raises:
        InputError: the kubeconfig cannot be used.
        ApiError: the server does not answer at the start, or refuses a source.
    """

    async def question(client: "KubeClient") -> None:
        await _follow(client, sources, show)

    cluster.ask(args, question)


async def _follow(client: "KubeClient", sources: Sequence[Source], show: Show) -> None:
    from gpudra.driver.kube.reflector import Reflector

    changed = asyncio.Event()

    def reflector(source: Source) -> Reflector[Obj]:
        return Reflector(
            client,
            source.resource,
            lambda raw: raw,
            namespace=source.namespace,
            field_selector=source.field_selector,
            on_event=lambda _: changed.set(),
            on_error=lambda error: print(f"trying again: {error.message}", file=sys.stderr),
        )

    there = [await _is_there(client, source) for source in sources]
    reflectors = [reflector(one) if yes else None for one, yes in zip(sources, there, strict=True)]
    async with asyncio.TaskGroup() as tasks:
        for one in reflectors:
            if one is not None:
                tasks.create_task(one.run())
        tasks.create_task(_print_for_ever(reflectors, changed, show))


async def _is_there(client: "KubeClient", source: Source) -> bool:
    """Asked once before the reflector, which would try for ever."""
    try:
        await client.list_page(
            source.resource, source.namespace, field_selector=source.field_selector, limit=1
        )
    except (NotFoundError, ForbiddenError):
        if not source.optional:
            raise
        return False
    return True


async def _print_for_ever(
    reflectors: "Sequence[Reflector[Obj] | None]", changed: asyncio.Event, show: Show
) -> None:
    for one in reflectors:
        if one is not None:
            await one.wait_synced()
    terminal, first = sys.stdout.isatty(), True
    while True:
        changed.clear()
        if terminal:
            print(_CLEAR, end="")
        elif not first:
            print()
        show([[] if one is None else one.store.values() for one in reflectors])
        sys.stdout.flush()
        first = False
        await changed.wait()
        await asyncio.sleep(_SETTLE_SECONDS)
