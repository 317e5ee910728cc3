# SPDX-License-Identifier: Apache-2.0
"""MIG as steps of a plan: the card's mode, and one instance at its exact place.

What a killed process made is told from what others made by comparing: before the reservation is
stored, ``MigSurvey`` looks at the card and writes into the steps what lies there already and
whether the mode was switched by us. Nothing of that is ever destroyed. An instance at the place of
a step, of its profile, and not there before, is the step's own, whether or not its end was noted.

The card's lock is held around all of it, so nobody else of ours changes the card meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gpudra.api.codec import Json
from gpudra.api.errors import DeviceGoneError, HardwareError, InputError, StateError
from gpudra.driver.core.inventory import MigInstance, Placement
from gpudra.driver.core.prepare import MIG_INSTANCE, MIG_MODE, PreparePlan, Step
from gpudra.driver.devicelib.protocol import DeviceLib, PartitionLib, RefusedError
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.records import Records

log = get_logger(__name__)


class EffectGoneError(StateError):
    """What a prepared claim had made does not exist any more; it has to be prepared anew."""


class HeldError(HardwareError):
    """The mode takes a reset of the card, and somebody uses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An instance as its step describes it.

    Attributes:
        card: key of the card.
        device: name of the device.
        profile: id of the profile.
        place: where on the card.
        before: ids of the instances that were there before, in no order.
        claim: uid of the claim.
    """

    card: str
    device: str
    profile: int
    place: Placement
    before: frozenset[int]
    claim: str

    @classmethod
    def of(cls, step: Step) -> "Wanted":
        """From a step.

        Raises:
            StateError: a field is missing or of another shape.
        """
        args = step.args
        try:
            before = args["before"]
            return cls(
                card=str(args["card"]),
                device=str(args["device"]),
                profile=int(str(args["profile"])),
                place=Placement(start=int(str(args["start"])), size=int(str(args["size"]))),
                before=frozenset(int(str(one)) for one in before)
                if isinstance(before, list | tuple)
                else frozenset(),
                claim=str(args["claim"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"a step of kind {step.kind!r} cannot be understood ({error})",
                hint="run the version that wrote it until its claims are gone",
            ) from error

    def fits(self, instance: MigInstance) -> bool:
        """Whether an instance is of this profile at this place."""
        return (instance.profile_id, instance.placement) == (self.profile, self.place)


def own_instance(step: Step, instances: Iterable[MigInstance]) -> MigInstance | None:
    """The instance that a step made, among those on its card."""
    wanted = Wanted.of(step)
    found = next((one for one in instances if wanted.fits(one)), None)
    if found is None:
        return None
    noted = step.outcome.get("uuid")
    if noted is not None:
        return found if found.uuid in (None, noted) else None
    return None if found.gpu_instance_id in wanted.before else found


def instance_step(steps: Iterable[Step], device: str) -> Step | None:
    """The step that makes the instance of a device."""
    return next(
        (one for one in steps if one.kind == MIG_INSTANCE and one.args.get("device") == device),
        None,
    )


def made_by(step: Step) -> MigInstance | None:
    """The instance that a step has noted; None if its end was not noted."""
    noted = step.outcome
    if "uuid" not in noted:
        return None
    wanted = Wanted.of(step)
    return MigInstance(
        uuid=str(noted["uuid"]),
        profile_id=wanted.profile,
        gpu_instance_id=int(str(noted["gpuInstance"])),
        compute_instance_id=int(str(noted["computeInstance"])),
        placement=wanted.place,
    )


class Partitions:
    """MIG of the node's cards; what the two handlers and the survey have in common."""

    def __init__(self, lib: DeviceLib) -> None:
        self._lib = lib

    @property
    def lib(self) -> PartitionLib:
        """The library's part for MIG.

        Raises:
            HardwareError: it has none.
        """
        if self._lib.partitions is None:
            raise HardwareError(f"{self._lib.name} cards have no MIG")
        return self._lib.partitions

    def switch(self, card: str, *, on: bool, label: str) -> None:
        """Switches the mode now, or leaves nothing of the try.

        Raises:
            HeldError: somebody uses the card; the message names the processes that are known.
            HardwareError: the driver refuses.
        """
        if self.lib.set_mig_mode(card, enabled=on):
            return
        # Pending: the next reset, whoever's, would switch it behind everybody's back.
        self.lib.set_mig_mode(card, enabled=not on)
        raise HeldError(
            f"MIG mode switches {'on' if on else 'off'} with a reset of the card, and "
            f"{self._holders(card)}",
            obj=f"GPU {card}{label}",
            hint="end them, monitors and the driver's own services included; the kubelet will try "
            "again",
        )

    def _holders(self, card: str) -> str:
        found = self._lib.usage.processes(card) if self._lib.usage else ()
        if not found:
            return "somebody uses it"
        return "it is used by " + ", ".join(f"process {one.pid}" for one in found)


class MigSurvey:
    """Completes the MIG steps of a plan with what lies on the cards now."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def complete(self, plan: PreparePlan, others: Iterable[Step]) -> PreparePlan:
        """The plan with ``back`` and ``before`` filled in; a mode that is as wanted is left out.

        Blocks. The cards' locks are held, so ``others`` cannot change meanwhile.

        Args:
            plan: as gpudra.driver.core.prepare made it.
            others: steps of all other records.

        Raises:
            HardwareError: a card does not answer.
        """
        modes = [one for one in others if one.kind == MIG_MODE]
        steps = [self._completed(step, modes) for step in plan.steps]
        return replace(plan, steps=tuple(step for step in steps if step is not None))

    def _completed(self, step: Step, modes: Iterable[Step]) -> Step | None:
        card = str(step.args.get("card", ""))
        if step.kind == MIG_INSTANCE:
            before: list[Json] = [
                one.gpu_instance_id for one in self._partitions.lib.mig_instances(card)
            ]
            return _with(step, before=before)
        if step.kind != MIG_MODE:
            return step
        same = [one for one in modes if (one.args.get("card"), one.args.get("on")) == (
            card, step.args["on"],
        )]  # fmt: skip
        is_so = self._partitions.lib.mig_mode(card) is bool(step.args["on"])
        # Who comes second takes over the duty to put the mode back.
        back = any(bool(one.args.get("back")) for one in same) or not is_so
        return _with(step, back=True) if back else None


def _with(step: Step, **args: Json) -> Step:
    return replace(step, args={**step.args, **args})


class MigModeStep:
    """StepHandler that switches MIG on before the first instance, and off after the last.

    Args:
        partitions: MIG of the node.
        records: every claim that holds something now.
    """

    lasting = True

    def __init__(self, partitions: Partitions, records: Callable[[], Records]) -> None:
        self._partitions = partitions
        self._records = records

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Switches the mode.

        Raises:
            HardwareError: the card is in use.
        """
        card, on = str(step.args["card"]), bool(step.args["on"])
        if self._partitions.lib.mig_mode(card) is on:
            return {}
        self._partitions.switch(card, on=on, label=f" for {plan.claim.label}")
        return {}

    def restore(self, step: Step, plan: PreparePlan) -> bool:  # noqa: ARG002 - the protocol's
        """Looks whether the mode is as it was made.

        Raises:
            EffectGoneError: it is not, as after a reboot.
        """
        if self._is_so(step):
            return False
        raise EffectGoneError("MIG mode was changed", obj=f"GPU {step.args['card']}")

    def present(self, step: Step) -> bool:
        """Whether the mode is as it was made; a card that does not answer is not held against it."""
        try:
            return self._is_so(step)
        except (HardwareError, InputError):
            return True

    def _is_so(self, step: Step) -> bool:
        return self._partitions.lib.mig_mode(str(step.args["card"])) is bool(step.args["on"])

    def undo(self, step: Step) -> None:
        """Puts the mode back, unless another claim of ours or a foreign instance needs it."""
        card, on = str(step.args["card"]), bool(step.args["on"])
        if not step.args.get("back") or self._is_needed(step, card):
            return
        try:
            if self._partitions.lib.mig_mode(card) is on and not (
                on and self._partitions.lib.mig_instances(card)
            ):
                self._partitions.switch(card, on=not on, label="")
        except (DeviceGoneError, InputError) as error:
            # A card that is gone took its mode along.
            log.warning("MIG mode of a card that is gone", device=card, error=str(error))
        except HeldError as error:
            # The next claim that needs the other mode tries again; this one's end must not wait.
            log.warning("MIG mode stays as it was made", device=card, error=str(error))

    def _is_needed(self, step: Step, card: str) -> bool:
        return any(
            one.kind == MIG_MODE and one.args.get("card") == card
            for uid, record in list(self._records().items())
            if uid != step.args.get("claim")
            for one in record.steps
        )


class MigInstanceStep:
    """StepHandler that makes one instance, and destroys that one."""

    lasting = True

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        # Attempts of this process that were refused: what lies at their place is somebody else's.
        self._refused: set[tuple[str, str]] = set()

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Makes the instance and checks that it is what was asked for.

        Raises:
            RefusedError: the place is taken, or no engines are left.
            HardwareError: the library fails, or the instance is another.
        """
        wanted = Wanted.of(step)
        key = (wanted.claim, wanted.device)
        self._refused.discard(key)
        try:
            made = self._partitions.lib.create_mig_instance(
                wanted.card, wanted.profile, wanted.place.start
            )
        except (RefusedError, InputError):
            self._refused.add(key)
            raise
        if not wanted.fits(made) or made.compute_instance_id is None or made.uuid is None:
            # It is ours all the same, and the way back does not find it by its place.
            self._partitions.lib.destroy_mig_instance(wanted.card, made.gpu_instance_id)
            raise HardwareError(
                f"MIG instance {made.gpu_instance_id} is not what was asked for: profile "
                f"{made.profile_id} at {made.placement.start}, size {made.placement.size}, "
                f"uuid {made.uuid}",
                obj=f"device {wanted.device} for {plan.claim.label}",
            )
        return {
            "uuid": made.uuid,
            "gpuInstance": made.gpu_instance_id,
            "computeInstance": made.compute_instance_id,
        }

    def restore(self, step: Step, plan: PreparePlan) -> bool:  # noqa: ARG002 - the protocol's
        """Looks whether the instance is there.

        Raises:
            EffectGoneError: it is not, as after a reboot.
        """
        if self._found(step) is not None:
            return False
        raise EffectGoneError(
            f"MIG instance of device {step.args['device']} does not exist any more",
            obj=f"GPU {step.args['card']}",
        )

    def present(self, step: Step) -> bool:
        """Whether the instance is there; a card that does not answer is not held against it."""
        try:
            return self._found(step) is not None
        except (HardwareError, InputError):
            return True

    def undo(self, step: Step) -> None:
        """Destroys what the step made; nothing happens if that is gone already."""
        wanted = Wanted.of(step)
        refused = (wanted.claim, wanted.device) in self._refused
        try:
            found = None if refused else self._found(step)
            if found is not None:
                self._partitions.lib.destroy_mig_instance(wanted.card, found.gpu_instance_id)
        except (DeviceGoneError, InputError) as error:
            # A card that is gone took its instances along.
            log.warning("MIG instance of a card that is gone", device=wanted.card, error=str(error))
        self._refused.discard((wanted.claim, wanted.device))

    def _found(self, step: Step) -> MigInstance | None:
        return own_instance(step, self._partitions.lib.mig_instances(str(step.args["card"])))
