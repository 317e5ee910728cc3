# SPDX-License-Identifier: Apache-2.0
"""Sharing as steps of a plan: one StepHandler per backend, for gpudra.kubelet_plugin.steps.

A step of sharing names its claim, device and limits, so undoing needs nothing else. Everything
that it makes lies in a folder of the current boot, or is a setting that a reboot resets: nothing
has to be synced, but others see it, so the reservation has to be on the disk before.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpudra.api.codec import Json
from gpudra.api.errors import HardwareError
from gpudra.driver.core.prepare import PreparePlan, Step
from gpudra.driver.core.sharing import Backend, Sharing
from gpudra.kubelet_plugin.sharing.protocol import SharingBackend

# The uuid of what a step shares, if it was not known when the claim was planned.
TargetOf = Callable[[Sharing, PreparePlan], str]


class SharingStep:
    """StepHandler of one backend.

    Args:
        backend: does the work.
        target_of: asked for the uuid of a MIG instance that an earlier step has made.
    """

    def __init__(self, backend: SharingBackend, target_of: TargetOf) -> None:
        self._backend = backend
        self._target_of = target_of
        self.lasting = backend.name is not Backend.NONE

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Does it and looks whether it holds.

        Raises:
            HardwareError: it does not hold, or the card or a program does not answer.
            StateError: a file cannot be written.
        """
        one = self._resolved(step, plan)
        outcome = self._backend.prepare(one)
        problems = self._backend.verify(one)
        if problems:
            raise HardwareError(
                f"isolation {one.backend} of device {one.device} does not hold: "
                f"{'; '.join(problems)}",
                obj=plan.claim.label,
            )
        return {**outcome, "target": one.target}

    def restore(self, step: Step, plan: PreparePlan) -> bool:
        """Does it again if it is not in force."""
        one = self._resolved(step, plan)
        if self._backend.present(one):
            return False
        self._backend.prepare(one)
        return True

    def present(self, step: Step) -> bool:
        """Whether it is in force, as far as can be seen without the card."""
        return self._backend.present(Sharing.of(step))

    def undo(self, step: Step) -> None:
        """Takes it back."""
        self._backend.undo(Sharing.of(step))

    def _resolved(self, step: Step, plan: PreparePlan) -> Sharing:
        one = Sharing.of(step)
        if one.target or one.backend is not Backend.MPS:
            return one
        return replace(one, target=self._target_of(one, plan))
