# SPDX-License-Identifier: Apache-2.0
"""What sharing a device is made of: backends, what a node offers, what one claim takes.

Everything is frozen. ``Sharing`` is what one claim takes of one device; it travels as the arguments
of a Step, so that whoever undoes it needs nothing else.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from gpudra.api.codec import Json
from gpudra.api.errors import StateError
from gpudra.driver.core.prepare import Step

STEP_PREFIX = "share-"


class Backend(enum.StrEnum):
    """What keeps the users of one device apart, strongest first.

    The values are those of ``sharing.isolation`` in gpudra.api.config.v1alpha1, which is not
    imported since it loads pydantic.
    """

    MPS = "mps"
    HAMI_CORE = "hami-core"
    TIME_SLICE = "time-slice"
    NONE = "none"


class Preload(enum.StrEnum):
    """How a library gets into every process of a container."""

    FILE = "file"
    ENV = "env"


# Taken only where a claim or the node's policy names them: they hold nobody to a limit.
ASKED_ONLY = frozenset({Backend.TIME_SLICE, Backend.NONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the deciding configuration of one device says about sharing.

    Attributes:
        isolation: the backend; None leaves it to the node.
        time_slice: ``default``, ``short``, ``medium`` or ``long``, for time-slice.
        memory_mib: of one client of a whole device under MPS; None for no limit.
        memory_by_uuid: the same for single devices.
        compute: per cent of one client of a whole device under MPS; 0 for no limit.
    """

    isolation: Backend | None = None
    time_slice: str | None = None
    memory_mib: int | None = None
    memory_by_uuid: Mapping[str, int] = field(default_factory=dict)
    compute: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things lie on the host, as agent and container runtime see it.

    Attributes:
        runtime_dir: folder for what one boot needs; the agent sees it at the same path.
        hami_library: ``libvgpu.so`` of HAMi-core; empty if the node has none.
        preload: by a mounted ``/etc/ld.so.preload``, or by LD_PRELOAD.
    """

    runtime_dir: str = "/run/gpudra"
    hami_library: str = ""
    preload: Preload = Preload.FILE

    def hami_folder(self, claim_uid: str) -> str:
        """The folder of one claim: its cache and its preload file."""
        return f"{self.runtime_dir}/hami-core/{claim_uid}"

    def mps_folder(self, device: str) -> str:
        """The folder of the daemon of one device."""
        return f"{self.runtime_dir}/mps/{device}"

    def time_slice_folder(self, device: str) -> str:
        """The folder that says who uses time slices of one device."""
        return f"{self.runtime_dir}/time-slice/{device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSharing:
    """What a node can do and may do.

    Attributes:
        backends: by backend, why it cannot be used; empty text means that it can.
        allowed: what the node's policy lets claims have.
        default: what the policy takes where a claim does not say; None: the strongest usable.
        places: see Places.
    """

    backends: Mapping[Backend, str]
    allowed: frozenset[Backend] = frozenset(Backend)
    default: Backend | None = None
    places: Places = field(default_factory=Places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What one claim takes of one device, and how it is held to it.

    Attributes:
        backend: see Backend.
        device: name of the device; daemons and counts of users go by it.
        card: key of its card.
        target: uuid of what is shared; empty for a MIG instance that does not exist yet.
        claim_uid: who takes it.
        memory_mib: limit, None for none (a whole device that several containers use).
        compute: per cent of the card, 0 for no limit.
        time_slice: for time-slice.
        requests: the view that the limits were made for: the requests that its containers see,
            ascending. Empty: no container sees this device.
        partition: it is a MIG device, whose card's settings are left alone.
    """

    backend: Backend
    device: str
    card: str
    target: str
    claim_uid: str
    memory_mib: int | None = None
    compute: int = 0
    time_slice: str = "default"
    requests: tuple[str, ...] = ()
    partition: bool = False

    def step(self) -> Step:
        """As a step of a plan."""
        args: dict[str, Json] = {
            "device": self.device,
            "card": self.card,
            "target": self.target,
            "claim": self.claim_uid,
            "memoryMiB": self.memory_mib,
            "compute": self.compute,
            "timeSlice": self.time_slice,
            "requests": list(self.requests),
            "partition": self.partition,
        }
        return Step(kind=STEP_PREFIX + self.backend, args=args)

    @classmethod
    def of(cls, step: Step) -> "Sharing":
        """Back from a step.

        Raises:
            StateError: the step is of another kind, or lacks a field.
        """
        args = step.args
        try:
            memory, requests = args["memoryMiB"], args["requests"]
            return cls(
                backend=Backend(step.kind.removeprefix(STEP_PREFIX)),
                device=str(args["device"]),
                card=str(args["card"]),
                target=str(args["target"]),
                claim_uid=str(args["claim"]),
                memory_mib=None if memory is None else int(str(memory)),
                compute=int(str(args["compute"])),
                time_slice=str(args["timeSlice"]),
                requests=tuple(str(one) for one in cast("list[Json]", requests)),
                partition=bool(args["partition"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"a step of kind {step.kind!r} cannot be understood ({error})",
                hint="run the version that wrote it until its claims are gone",
            ) from error


def is_sharing(step: Step) -> bool:
    """Whether a step is one of sharing."""
    return step.kind.startswith(STEP_PREFIX)


def sharings(steps: Iterable[Step]) -> tuple[Sharing, ...]:
    """What a record's steps say about sharing, in order.

    Raises:
        StateError: one of them cannot be understood.
    """
    return tuple(Sharing.of(step) for step in steps if is_sharing(step))


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """What holds the user of one device to its part: the condition ``Isolated``.

    Attributes:
        reason: of the condition; Kubernetes allows no dash in it.
        isolated: whether memory is limited, and compute where the claim reserved some.
        enforced: what is, and by whom.
        not_enforced: what is not.
        message: both, for people.
    """

    reason: str
    isolated: bool
    enforced: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Both lists as one sentence each."""
        parts = []
        if self.enforced:
            parts.append(f"enforced: {', '.join(self.enforced)}")
        if self.not_enforced:
            parts.append(f"not enforced: {', '.join(self.not_enforced)}")
        return "; ".join(parts)
