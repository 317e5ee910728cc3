# SPDX-License-Identifier: Apache-2.0
"""What every isolation backend does, and the settings that they share.

All methods block and are called from worker threads. Calls for one device are never made at the
same time: the agent holds the card's lock, and gpudra.kubelet_plugin.sharing has one of its own
for the look after daemons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gpudra.api.codec import Json
from gpudra.api.errors import InputError
from gpudra.driver.core.sharing import Backend, IsolationReport, Places, Preload, Sharing
from gpudra.kubelet_plugin.sharing.launch import MpsLaunch


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """Settings of the node.

    Attributes:
        runtime_dir: folder for what one boot needs, the same path for agent, host and runtime.
        hami_library: ``libvgpu.so``, the same path for agent and host; empty: none.
        preload: see Preload.
        mps: how the MPS control daemon is started; None: the node has no such program.
        allowed: backends that claims may have.
        default: what shares get where the claim does not say; None: the strongest.
    """

    runtime_dir: Path = Path("/run/gpudra")
    hami_library: str = ""
    preload: Preload = Preload.FILE
    mps: MpsLaunch | None = None
    allowed: frozenset[Backend] = field(default_factory=lambda: frozenset(Backend))
    default: Backend | None = None

    def __post_init__(self) -> None:
        if not self.runtime_dir.is_absolute():
            raise InputError(f"{self.runtime_dir} is not absolute", field="runtime-dir")
        if self.hami_library and not Path(self.hami_library).is_absolute():
            raise InputError(f"{self.hami_library} is not absolute", field="hami-core-library")

    def within(self, isolation: str | None) -> "SharingSettings":
        """The same with what the node's policy names where claims do not; None: the strongest."""
        return replace(self, default=Backend(isolation) if isolation else None)

    @property
    def places(self) -> Places:
        """As the pure plan wants it."""
        return Places(
            runtime_dir=str(self.runtime_dir),
            hami_library=self.hami_library,
            preload=self.preload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonReport:
    """What happened to the daemon of one device since the last look.

    Attributes:
        device: name of the device.
        healthy: whether it serves now.
        message: for logs and Events.
    """

    device: str
    healthy: bool
    message: str


class SharingBackend(Protocol):
    """One backend."""

    name: Backend

    def unavailable(self) -> str:
        """Why it cannot be used on this node; empty if it can. Cheap enough for every Prepare."""
        ...

    def prepare(self, one: Sharing) -> Mapping[str, Json]:
        """Makes it so; harmless if it is so already. Returns what is worth remembering.

        Raises:
            HardwareError: the card, or the program that serves it, refuses or does not answer.
            StateError: a file cannot be written.
        """
        ...

    def undo(self, one: Sharing) -> None:
        """Takes it back; the last user's end puts the card's settings back.

        Harmless if it was never done.

        Raises:
            HardwareError: a setting cannot be put back now.
            StateError: a file cannot be removed.
        """
        ...

    def present(self, one: Sharing) -> bool:
        """Whether it is in force, as far as can be seen without the card."""
        ...

    def verify(self, one: Sharing) -> tuple[str, ...]:
        """What keeps the limits from being in force; empty if they are. Never raises."""
        ...

    def describe(self, one: Sharing) -> IsolationReport:
        """What is enforced and what is not."""
        ...

    def check(self) -> tuple[DaemonReport, ...]:
        """Looks after what runs for it, and mends what it can. Never raises."""
        ...

    def sweep(self, live: frozenset[str]) -> tuple[str, ...]:
        """Takes back what no claim in ``live`` uses; says what that was.

        What cannot be taken back now is logged and tried with the next sweep.
        """
        ...
