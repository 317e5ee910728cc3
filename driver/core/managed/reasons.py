# SPDX-License-Identifier: Apache-2.0
"""Why a job has no room: nodes counted by reason, and what the devices say where they are short."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpudra.driver.core.allocator import explain_claims
from gpudra.driver.core.allocator.view import NodeView, state_key
from gpudra.driver.core.gangs.cards import UNTOUCHED
from gpudra.driver.core.gangs.kinds import NO_DEVICES, Board, Kind
from gpudra.driver.core.gangs.solver import Failed, Floor, Need
from gpudra.driver.core.managed.state import ManagedCluster

_EXPLAINED = 2  # classes of nodes whose devices are explained


def no_room(
    state: ManagedCluster, floor: Floor, kind: Kind, failed: Failed, pods: int, reserved: str
) -> str:
    """The message of a job that has no room.

    Args:
        state: for explaining devices.
        floor: where it was tried.
        kind: of the pod that found no node.
        failed: what the solver said.
        pods: of the job.
        reserved: jobs for which nodes are kept free from this one; empty: none.
    """
    nodes = len(state.ground.names)
    refusals = floor.candidates(kind).refusals()
    counts = Counter(refusals.values())
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    parts = [f"{count} {_said(reason)}" for reason, count in ordered]
    left = nodes - len(refusals)
    pod = failed.need.pod
    if left > 0:
        why = (
            f"kept free for {reserved}" if reserved else "taken by the rest of the job, or avoided"
        )
        parts.append(f"{left} {why}")
    text = f"0 of {nodes} nodes for pod {pod.key}: {', '.join(parts) or 'there are none'}"
    if pods > 1:
        text += f"; {failed.placed} of {pods} pods had a place"
    devices = [name for name, reason in refusals.items() if reason == NO_DEVICES]
    detail = _devices(state, floor, failed.need, devices)
    return f"{text}. {detail}" if detail else text


def _said(reason: str) -> str:
    if reason in {"cpu", "memory", "pods"} or ("/" in reason and not reason.startswith("taint")):
        return f"too little {reason}"
    return "no devices" if reason == NO_DEVICES else reason


def _devices(state: ManagedCluster, floor: Floor, need: Need, names: Sequence[str]) -> str:
    """What is free on the nodes that lack devices, and what the first of each class says."""
    claims = [*need.own, *need.shared]
    if not names or not claims:
        return ""
    classes: dict[Any, list[str]] = {}
    best = most = 0
    for name in names:
        cell = floor.sketch.cell(name)
        if cell is None or cell.view is None:
            classes.setdefault(None, []).append(name)
            continue
        free, cards = _untouched(floor.board, cell.view)
        best, most = max(best, free), max(most, cards)
        classes.setdefault((state_key(cell.view), cards), []).append(name)
    texts = [f"At most {best} of {most} cards are untouched on one node"] if most else []
    changed = set(floor.sketch.journal)
    for own in sorted(classes.values(), key=lambda one: (-len(one), one[0]))[:_EXPLAINED]:
        if own[0] in changed:
            continue  # the plan itself has given its devices out
        found = explain_claims(state.ground.index, claims, own[0])
        if found.binding:
            texts.append(f"{own[0]} and {len(own) - 1} like it: {found.binding}")
    return "; ".join(texts)


def _untouched(board: Board, view: NodeView) -> tuple[int, int]:
    """Cards of a node that nobody has begun, and all of them."""
    free = total = 0
    for record in view.records:
        layout = board.ground.layouts.of(record.pool)
        if layout is not None:
            cards = board.cards(layout, record)
            free += sum(1 for card in cards if card == UNTOUCHED)
            total += len(cards)
    return free, total
