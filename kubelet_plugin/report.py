# SPDX-License-Identifier: Apache-2.0
"""Tells metrics and Events what became of each claim."""

from collections.abc import Callable

from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.kube.events import EventRecorder
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import Metrics
from gpudra.kubelet_plugin.checkpoint import Checkpoint
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.spent import Account

_REASONS = {"prepare": "PrepareFailed", "unprepare": "UnprepareFailed"}
_SECONDS = {"prepare": m.PREPARE_SECONDS, "unprepare": m.UNPREPARE_SECONDS}
# events.k8s.io/v1 refuses a longer note.
_MAX_NOTE = 1024


class ClaimReport:
    """The gRPC service's Report.

    Args:
        metrics: of this process.
        events: recorder; never blocks.
        node: reference to this node's object.
        checkpoint: what is stored, for the gauges of what is prepared.
        on_call_ended: told after each call of the kubelet.
    """

    def __init__(
        self,
        metrics: Metrics,
        events: EventRecorder,
        *,
        node: dict[str, str],
        checkpoint: Checkpoint,
        on_call_ended: Callable[[], None] | None = None,
    ) -> None:
        self._metrics = metrics
        self._events = events
        self._node = node
        self._checkpoint = checkpoint
        self._on_call_ended = on_call_ended

    def began(self, operation: str) -> None:
        """See Report."""
        self._metrics.inc(m.IN_FLIGHT, 1, operation=operation)

    def ended(self, operation: str, outcome: str, seconds: float, account: Account) -> None:
        """See Report."""
        self._metrics.inc(m.IN_FLIGHT, -1, operation=operation)
        self._metrics.observe(_SECONDS[operation], seconds, form=account.form, outcome=outcome)
        for phase, spent in account.seconds.items():
            self._metrics.observe(m.PHASE_SECONDS, spent, operation=operation, phase=phase)

    def call_ended(self) -> None:
        """Sets the gauges of what is prepared."""
        self._metrics.set(m.PREPARED_CLAIMS, len(self._checkpoint.records))
        kinds = dict.fromkeys((kind.value for kind in DeviceKind), 0)
        for record in self._checkpoint.records.values():
            for hold in record.holds:
                kinds[hold.kind] = kinds.get(hold.kind, 0) + 1
            kinds[DeviceKind.MONITOR] += sum(bool(one.admin_access) for one in record.results)
        for kind, count in kinds.items():
            self._metrics.set(m.PREPARED_DEVICES, count, kind=kind)
        if self._on_call_ended is not None:
            self._on_call_ended()

    def claim_failed(self, ref: ClaimRef, operation: str, message: str) -> None:
        """See Report."""
        self._events.event(
            ref.as_object(),
            "Warning",
            _REASONS[operation],
            message[:_MAX_NOTE],
            action=operation.capitalize(),
            related=self._node,
        )

    def node_warning(self, reason: str, note: str) -> None:
        """Something for the people who look at the node."""
        self._events.event(self._node, "Warning", reason, note[:_MAX_NOTE], action="Recover")
