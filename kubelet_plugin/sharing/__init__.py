# SPDX-License-Identifier: Apache-2.0
"""Isolation backends of the node: what a SharingPlan asks for is done, verified and undone here.

The state machine uses ``handlers`` as step handlers; everything else is for reports, the periodic
look after daemons, and the sweep of what no claim uses.
"""

from collections.abc import Iterable, Mapping

from gpudra.api.errors import HardwareError, StateError
from gpudra.driver.core.prepare import PreparePlan, Step
from gpudra.driver.core.sharing import (
    Backend,
    IsolationReport,
    NodeSharing,
    Sharing,
    SharingPlan,
    sharings,
)
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.kubelet_plugin.sharing.hami_core import HamiCoreBackend
from gpudra.kubelet_plugin.sharing.launch import MpsLaunch
from gpudra.kubelet_plugin.sharing.mps import MpsBackend
from gpudra.kubelet_plugin.sharing.none import NoIsolation
from gpudra.kubelet_plugin.sharing.protocol import DaemonReport, SharingBackend, SharingSettings
from gpudra.kubelet_plugin.sharing.region import ClaimUsage
from gpudra.kubelet_plugin.sharing.steps import SharingStep, TargetOf
from gpudra.kubelet_plugin.sharing.time_slice import TimeSliceBackend

__all__ = [
    "Backends",
    "ClaimUsage",
    "DaemonReport",
    "MpsLaunch",
    "SharingSettings",
    "open_backends",
]


def unresolved(one: Sharing, plan: PreparePlan) -> str:
    """The default for ``target_of``: nobody can tell.

    Raises:
        HardwareError: always.
    """
    raise HardwareError(f"device {one.device} has no uuid yet", obj=plan.claim.label)


class Backends:
    """All backends of one node.

    Args:
        settings: of the node.
        backends: one of each.
        hami_core: the one that can tell usage.
    """

    def __init__(
        self,
        settings: SharingSettings,
        backends: Iterable[SharingBackend],
        hami_core: HamiCoreBackend,
        *,
        target_of: TargetOf = unresolved,
    ) -> None:
        self.settings = settings
        self._by_name = {one.name: one for one in backends}
        self._hami_core = hami_core
        self._target_of = target_of

    @property
    def node(self) -> NodeSharing:
        """What the node can do now; looked at anew each time, since libraries come and go."""
        return NodeSharing(
            backends={name: one.unavailable() for name, one in self._by_name.items()},
            allowed=self.settings.allowed,
            default=self.settings.default,
            places=self.settings.places,
        )

    def handlers(self) -> Mapping[str, SharingStep]:
        """One handler per kind of step, for StepRunner."""
        return {
            Sharing(backend=name, device="", card="", target="", claim_uid="").step().kind: (
                SharingStep(one, self._target_of)
            )
            for name, one in self._by_name.items()
        }

    def prepare(self, plan: SharingPlan) -> None:
        """Does everything, in order; what fails is undone with what came before it.

        Raises:
            HardwareError: a card or a program refuses, or what was done does not hold.
            StateError: a file cannot be written.
        """
        done: list[Sharing] = []
        try:
            for one in plan.shares:
                done.append(one)
                self._do(one)
        except (HardwareError, StateError):
            for one in reversed(done):
                self._of(one).undo(one)
            raise

    def _do(self, one: Sharing) -> None:
        backend = self._of(one)
        backend.prepare(one)
        problems = backend.verify(one)
        if problems:
            raise HardwareError(
                f"isolation {one.backend} does not hold: {'; '.join(problems)}",
                obj=f"device {one.device}",
            )

    def undo(self, record: Iterable[Step]) -> None:
        """Takes back the steps of a claim, last first; harmless for what was never done.

        Raises:
            HardwareError: a setting cannot be put back now.
            StateError: a file cannot be removed, or a step cannot be understood.
        """
        for one in reversed(sharings(record)):
            self._of(one).undo(one)

    def verify(self, record: Iterable[Step]) -> tuple[str, ...]:
        """What keeps a claim's limits from being in force; empty if they are."""
        return tuple(problem for one in sharings(record) for problem in self._of(one).verify(one))

    def describe(self, record: Iterable[Step]) -> Mapping[str, IsolationReport]:
        """By name of the device, what is enforced and what is not."""
        return {one.device: self._of(one).describe(one) for one in sharings(record)}

    def check(self) -> tuple[DaemonReport, ...]:
        """Looks after daemons; to be called every few seconds. Never raises."""
        return tuple(report for one in self._by_name.values() for report in one.check())

    def sweep(self, live: Iterable[str]) -> tuple[str, ...]:
        """Takes back what no living claim uses.

        Args:
            live: uids of all claims in the checkpoint, reservations included.
        """
        known = frozenset(live)
        return tuple(done for one in self._by_name.values() for done in one.sweep(known))

    def usage(self, claim_uid: str) -> ClaimUsage | None:
        """What a claim under HAMi-core uses; None if it is not, or has not begun."""
        return self._hami_core.usage(claim_uid)

    def _of(self, one: Sharing) -> SharingBackend:
        return self._by_name[one.backend]


def open_backends(
    settings: SharingSettings, lib: DeviceLib, *, target_of: TargetOf = unresolved
) -> Backends:
    """The backends of this node. Nothing is started before a claim needs it."""
    hami_core = HamiCoreBackend(settings.places)
    backends: tuple[SharingBackend, ...] = (
        MpsBackend(settings.runtime_dir / "mps", lib, settings.mps),
        hami_core,
        TimeSliceBackend(settings.runtime_dir / Backend.TIME_SLICE, lib),
        NoIsolation(),
    )
    return Backends(settings, backends, hami_core, target_of=target_of)
