# SPDX-License-Identifier: Apache-2.0
"""Managed mode's numbers as plain data: what the HTTP API and ``gpudra queues|whatif`` print."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from gpudra.controller.managed.loop import ManagedMode
from gpudra.controller.managed.pods import PLACED, QUEUED, PodRecord
from gpudra.controller.managed.statuses import group_status
from gpudra.driver.core.managed import WhatIf
from gpudra.driver.core.queueing import Amounts, QueueView

Row = dict[str, Any]


async def queue_rows(mode: ManagedMode) -> list[Row]:
    """Every queue, each after its parent."""
    views = await mode.planner.ask(lambda state: state.book.views())
    running, waiting = Counter[str](), Counter[str]()
    for record in mode.feed.pods.values():
        if record.view.queue and not record.view.ended:
            (waiting if record.view.gated else running)[record.view.queue] += 1
    return [queue_row(view, running[view.name], waiting[view.name]) for view in views]


def queue_row(view: QueueView, running: int, waiting: int) -> Row:
    """One queue."""
    grant = view.grant
    row: Row = {
        "name": view.name,
        "parent": view.parent,
        "depth": view.depth,
        "used": view.used.texts(),
        "borrowed": view.borrowed.texts(),
        "share": round(view.share, 4),
        "running": running,
        "waiting": waiting,
    }
    if grant is not None:
        row |= {
            "weight": grant.weight,
            "priority": grant.priority,
            "guarantee": grant.guarantee.texts(),
            "quota": grant.quota.texts(),
            "limit": limit_texts(grant.limit, grant.limited),
        }
    if view.history:
        row["past"] = round(view.history, 4)
    if view.problem is not None:
        row["problem"] = {"reason": view.problem.reason, "message": view.problem.message}
    return row


def limit_texts(limit: Amounts | None, limited: frozenset[str]) -> Mapping[str, str]:
    """What is limited; a limit of nothing at all is one, too."""
    texts = limit.texts() if limit is not None else {}
    return {name: texts.get(name, "0") for name in sorted(limited)}


def group_rows(mode: ManagedMode, namespace: str) -> list[Row]:
    """Every PodGroup of a namespace, or of all."""
    members = defaultdict[str, list[PodRecord]](list)
    for record in mode.feed.pods.values():
        if record.view.group:
            members[record.view.group].append(record)
    rows = []
    for group in mode.feed.groups.store.values():
        meta = group.metadata
        if namespace and meta.namespace != namespace:
            continue
        status = group_status(group, members[group.key], mode.statuses.job(group.key), "")
        (condition,) = [one for one in status["conditions"] if one["type"] == "Placed"]
        rows.append(
            {
                "namespace": meta.namespace,
                "name": meta.name,
                "queue": group.spec.queue or "",
                "minCount": group.spec.min_count,
                "phase": status["phase"],
                "running": status["running"],
                "waiting": status["waiting"],
                "reason": condition["reason"],
                "message": condition["message"],
            }
        )
    return rows


def pod_rows(mode: ManagedMode, namespace: str, queue: str) -> list[Row]:
    """Every managed pod of a namespace and a queue, or of all."""
    rows = []
    for record in mode.feed.pods.values():
        view = record.view
        if not view.queue or (namespace and view.namespace != namespace):
            continue
        if queue and view.queue != queue:
            continue
        said = record.said.get(QUEUED if view.gated else PLACED)
        rows.append(
            {
                "namespace": view.namespace,
                "name": view.name,
                "queue": view.queue,
                "group": view.group,
                "priority": view.priority,
                "state": _state(record),
                "node": view.node,
                "reason": said.reason if said else "",
                "message": said.message if said else "",
            }
        )
    return sorted(rows, key=lambda row: (row["namespace"], row["name"]))


def what_if_row(found: WhatIf) -> Row:
    """An answer to a what-if question."""
    placement = found.placement
    row: Row = {
        "fits": placement is not None,
        "reason": found.reason,
        "message": found.message,
        "queue": found.queue,
        "position": found.position,
        "amounts": found.amounts.texts(),
        "pods": [],
        "claims": [],
        "victims": [
            {
                "namespace": one.pod.namespace,
                "name": one.pod.name,
                "job": one.job,
                "reason": one.reason,
                "message": one.message,
                "frees": one.frees.texts(),
            }
            for one in found.victims
        ],
    }
    if placement is not None:
        row["pods"] = [{"name": pod.name, "node": pod.node} for pod in placement.pods]
        row["claims"] = [
            {
                "name": claim.name,
                "devices": [
                    {
                        "request": one.request,
                        "pool": one.pool,
                        "device": one.device,
                        **(
                            {"consumed": {k: str(v) for k, v in one.consumed_capacity.items()}}
                            if one.consumed_capacity
                            else {}
                        ),
                    }
                    for one in claim.allocation.devices.results
                ],
            }
            for claim in placement.claims
        ]
    return row


def _state(record: PodRecord) -> str:
    if record.view.ended:
        return "Ended"
    if record.view.gated:
        return "Waiting"
    return "Running" if record.phase == "Running" else "Placed"
