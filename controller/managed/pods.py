# SPDX-License-Identifier: Apache-2.0
"""What the edge keeps of a pod: what the plan needs, and what its own writes are compared with."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpudra.driver.core.gangs.podview import AVOID, GATE, GROUP_LABEL, claim_refs, pod_view
from gpudra.driver.core.gangs.types import PodView
from gpudra.driver.kube.clock import parse_time
from gpudra.driver.kube.resources import Obj

__all__ = [
    "ADMITTED",
    "AVOID",
    "EVICTED",
    "GATE",
    "PLACED",
    "QUEUED",
    "PodRecord",
    "Said",
    "pod_record",
]

QUEUED: Final = "gpudra.io/Queued"
ADMITTED: Final = "gpudra.io/Admitted"
PLACED: Final = "gpudra.io/Placed"
EVICTED: Final = "gpudra.io/Evicted"


@dataclass(frozen=True, slots=True)
class Said:
    """One of our conditions as the pod has it."""

    status: str
    reason: str
    message: str
    since: str


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod.

    Attributes:
        view: for the plan.
        version: its resourceVersion.
        gates: names of all its scheduling gates.
        said: our conditions by type.
        nominated: the node that its status names.
        phase: as the kubelet says.
    """

    view: PodView
    version: str
    gates: tuple[str, ...]
    said: Mapping[str, Said]
    nominated: str
    phase: str

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.view.namespace}/{self.view.name}"

    @property
    def reference(self) -> Obj:
        """For events."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": self.view.namespace,
            "name": self.view.name,
            "uid": self.view.uid,
        }


def pod_record(raw: Obj, default_queue: str = "") -> PodRecord:
    """From the API's form. Raises for one that cannot be read.

    Args:
        raw: the pod.
        default_queue: of its namespace. A member of a group that names no queue waits at the gate
            all the same, and is in the group's queue, or else in this one.
    """
    status = raw.get("status") or {}
    spec = raw.get("spec") or {}
    gates = tuple(str(gate["name"]) for gate in spec.get("schedulingGates") or ())
    view = pod_view(
        raw,
        claims=claim_refs(raw),
        created=_seconds(raw["metadata"].get("creationTimestamp")) or 0.0,
        started=_seconds(status.get("startTime")),
    )
    if not view.queue and GROUP_LABEL in (raw["metadata"].get("labels") or {}):
        view = dataclasses.replace(view, queue=default_queue)
    return PodRecord(
        view=view,
        version=str(raw["metadata"].get("resourceVersion") or ""),
        gates=gates,
        said={
            str(one["type"]): Said(
                str(one.get("status") or ""),
                str(one.get("reason") or ""),
                str(one.get("message") or ""),
                str(one.get("lastTransitionTime") or ""),
            )
            for one in status.get("conditions") or ()
            if one.get("type") in {QUEUED, ADMITTED, PLACED, EVICTED}
        },
        nominated=str(status.get("nominatedNodeName") or ""),
        phase=str(status.get("phase") or ""),
    )


def _seconds(text: str | None) -> float | None:
    """A time as seconds since the epoch; None for none."""
    return parse_time(text).timestamp() if text else None
