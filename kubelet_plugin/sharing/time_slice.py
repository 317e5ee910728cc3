# SPDX-License-Identifier: Apache-2.0
"""Time slices: the driver lets processes on one card take turns; the length of a turn is set here.

Nothing is limited by it. The length belongs to the card, so it is set with the first claim and put
back to the driver's default with the last one.
"""

from collections.abc import Mapping
from pathlib import Path

from gpudra.api.codec import Json
from gpudra.api.errors import DeviceGoneError, GpudraError, HardwareError, InputError
from gpudra.driver.core.sharing import Backend, IsolationReport, Sharing, sharing_report
from gpudra.driver.devicelib.protocol import DeviceLib, TimeSlice, TuningLib
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.sharing.protocol import DaemonReport
from gpudra.kubelet_plugin.sharing.users import Users, checked_device, folders_of

log = get_logger(__name__)


class TimeSliceBackend:
    """SharingBackend that sets the length of time slices.

    Args:
        folder: where users are noted.
        lib: the device library.
    """

    name = Backend.TIME_SLICE

    def __init__(self, folder: Path, lib: DeviceLib) -> None:
        self._folder = folder
        self._lib = lib

    def unavailable(self) -> str:
        """The backend of the node's cards has to have such a setting."""
        return "" if self._lib.tuning else f"{self._lib.name} cards have no such setting"

    def prepare(self, one: Sharing) -> Mapping[str, Json]:
        """Notes the user, then sets the length."""
        self._users(one.device).add(one.claim_uid, {"card": one.card, "length": one.time_slice})
        self._tuning().set_time_slice([one.card], TimeSlice(one.time_slice))
        return {}

    def undo(self, one: Sharing) -> None:
        """Puts the default back if nobody else uses the card, then forgets the user."""
        self._end(one.device, one.claim_uid, one.card)

    def _end(self, device: str, claim_uid: str, card: str) -> None:
        users = self._users(device)
        found = users.all()
        if claim_uid in found and len(found) == 1:
            self._reset(card)
        users.remove(claim_uid)
        if not users.all():
            users.clear()

    def _reset(self, card: str) -> None:
        try:
            self._tuning().set_time_slice([card], TimeSlice.DEFAULT)
        except (DeviceGoneError, InputError) as error:
            # A card that is gone took its settings along.
            log.warning("time slices of a card that is gone", device=card, error=str(error))

    def present(self, one: Sharing) -> bool:
        """Whether the user is noted; the setting itself cannot be read."""
        return one.claim_uid in self._users(one.device).all()

    def verify(self, one: Sharing) -> tuple[str, ...]:
        """As ``present``."""
        return () if self.present(one) else (f"time slices of {one.device} are not set",)

    def describe(self, one: Sharing) -> IsolationReport:
        """See gpudra.driver.core.sharing.reports."""
        return sharing_report(one)

    def check(self) -> tuple[DaemonReport, ...]:
        """Nothing runs."""
        return ()

    def sweep(self, live: frozenset[str]) -> tuple[str, ...]:
        """Ends users whose claim is not alive."""
        done = []
        for folder in folders_of(self._folder):
            for claim, facts in Users(folder).all().items():
                if claim in live:
                    continue
                try:
                    self._end(folder.name, claim, str(facts.get("card", "")))
                except GpudraError as error:
                    log.warning("cannot end time slices, will try again", error=str(error))
                    continue
                done.append(f"time slices of {folder.name} for claim {claim}")
        return tuple(done)

    def _users(self, device: str) -> Users:
        return Users(self._folder / checked_device(device))

    def _tuning(self) -> TuningLib:
        if self._lib.tuning is None:
            raise HardwareError(f"{self._lib.name} cards have no time slices that could be set")
        return self._lib.tuning
