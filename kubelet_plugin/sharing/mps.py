# SPDX-License-Identifier: Apache-2.0
"""MPS: one control daemon per device, that holds each client to a part of memory and compute.

Limits come to a client through its environment, which it could change; so the daemon's own defaults
are set to the largest share of the device, and a client can take no more than that.

The card goes into exclusive-process mode, in which nobody but the MPS server can make contexts; the
mode before is noted first and put back with the last claim. A MIG device has no mode of its own, so
there the mode is left alone.

Not run on hardware so far: tests use a stand-in for the control program.
"""

import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from gpudra.api.codec import Json
from gpudra.api.errors import DeviceGoneError, GpudraError, HardwareError, InputError
from gpudra.driver.core.sharing import Backend, IsolationReport, Sharing, sharing_report
from gpudra.driver.devicelib.protocol import ComputeMode, DeviceLib
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.sharing.launch import MpsLaunch
from gpudra.kubelet_plugin.sharing.mps_daemon import MpsDaemon, NoAnswerError
from gpudra.kubelet_plugin.sharing.protocol import DaemonReport
from gpudra.kubelet_plugin.sharing.users import Users, checked_device, folders_of

_SETTINGS = "settings.json"
_ALL = 100
# A daemon that misses so many looks in a row hangs; one miss may be a busy node.
_MISSES = 2
log = get_logger(__name__)


class MpsBackend:
    """SharingBackend with MPS.

    Args:
        folder: of all daemons.
        lib: the device library, for compute modes.
        launch: how the program is called; None: the node has none.
    """

    name = Backend.MPS

    def __init__(self, folder: Path, lib: DeviceLib, launch: MpsLaunch | None) -> None:
        self._folder = folder
        self._lib = lib
        self._launch = launch
        self._daemons: dict[str, MpsDaemon] = {}
        self._misses: dict[str, int] = {}
        # Prepare, Unprepare and the look after daemons never meet on one device.
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}

    def unavailable(self) -> str:
        """Takes the control program, and cards with compute modes."""
        if self._launch is None:
            return "no MPS control program is configured"
        seen = self._launch.seen_program()
        found = seen.is_file() if seen else shutil.which(self._launch.program) is not None
        if not found:
            return f"{self._launch.program} is not on this node"
        return "" if self._lib.tuning else f"{self._lib.name} cards have no compute mode"

    def prepare(self, one: Sharing) -> Mapping[str, Json]:
        """Notes the user, sets the mode, starts the daemon, sets its limits."""
        with self._lock(one.device):
            users = self._users(one.device)
            users.add(
                one.claim_uid,
                {"memoryMiB": one.memory_mib, "compute": one.compute},
            )
            self._enter(one)
            daemon = self._daemon(one.device)
            daemon.start()
            self._limit(daemon, users)
            return {}

    def _enter(self, one: Sharing) -> None:
        """Exclusive mode; what was there before is noted, once, before it is changed."""
        path = self._settings(one.device)
        if not path.exists():
            mode = None if one.partition else self._mode(one.card)
            known = {"card": one.card, "target": one.target, "computeMode": mode}
            files.write_atomically(path, orjson.dumps(known), sync=False)
        if not one.partition and self._lib.tuning is not None:
            self._lib.tuning.set_compute_mode(one.card, ComputeMode.EXCLUSIVE_PROCESS)

    def _mode(self, card: str) -> str:
        if self._lib.tuning is None:
            raise HardwareError(f"{self._lib.name} cards have no compute mode")
        return str(self._lib.tuning.compute_mode(card))

    def _limit(self, daemon: MpsDaemon, users: Users) -> None:
        """No client gets more than the largest share, whatever it writes into its environment."""
        known = list(users.all().values())
        memory, compute = _largest(known)
        commands = [f"set_default_active_thread_percentage {compute}"]
        if memory:
            commands.append(f"set_default_device_pinned_mem_limit 0 {memory}M")
        for server in daemon.servers():
            commands.append(f"set_active_thread_percentage {server} {compute}")
            if memory:
                commands.append(f"set_device_pinned_mem_limit {server} 0 {memory}M")
        daemon.ask("\n".join(commands))

    def undo(self, one: Sharing) -> None:
        """Forgets the user; with the last one the daemon ends and the mode is put back."""
        with self._lock(one.device):
            self._users(one.device).remove(one.claim_uid)
            self._leave(one.device)

    def _leave(self, device: str) -> None:
        users = self._users(device)
        if users.all():
            daemon = self._daemon(device)
            try:
                if daemon.running():
                    self._limit(daemon, users)
            except HardwareError as error:
                # The next look after the daemon mends it; the one who leaves must not wait.
                log.warning("cannot lower limits of MPS", device=device, error=str(error))
            return
        if not users.folder.exists():
            return
        self._daemon(device).stop()
        self._put_mode_back(device)
        users.clear()
        self._daemons.pop(device, None)
        self._misses.pop(device, None)

    def _put_mode_back(self, device: str) -> None:
        known = self._known(device)
        mode = known.get("computeMode")
        if mode is None or self._lib.tuning is None:
            return
        try:
            self._lib.tuning.set_compute_mode(str(known["card"]), ComputeMode(mode))
        except (DeviceGoneError, InputError) as error:
            # A card that is gone took its settings along.
            log.warning("compute mode of a card that is gone", device=device, error=str(error))

    def present(self, one: Sharing) -> bool:
        """Whether the user is noted and the daemon's process is there."""
        noted = one.claim_uid in self._users(one.device).all()
        return noted and self._daemon(one.device).running()

    def verify(self, one: Sharing) -> tuple[str, ...]:
        """The daemon answers, and its own limit is no lower than what this claim was promised."""
        with self._lock(one.device):
            try:
                return tuple(self._problems(one))
            except GpudraError as error:
                return (str(error),)

    def _problems(self, one: Sharing) -> Iterable[str]:
        daemon = self._daemon(one.device)
        if not self.present(one):
            yield f"the MPS daemon of {one.device} does not run"
            return
        daemon.ask("get_server_list")
        tuning = self._lib.tuning
        if not one.partition and tuning is not None:
            mode = tuning.compute_mode(one.card)
            if mode is not ComputeMode.EXCLUSIVE_PROCESS:
                yield f"the compute mode of {one.card} is {mode}, so programs can go round MPS"

    def describe(self, one: Sharing) -> IsolationReport:
        """See gpudra.driver.core.sharing.reports."""
        return sharing_report(one)

    def check(self) -> tuple[DaemonReport, ...]:
        """Starts dead daemons again, and hung ones after their second miss."""
        reports = []
        for folder in folders_of(self._folder):
            with self._lock(folder.name):
                users = Users(folder)
                if users.all():
                    report = self._look_after(folder.name, users)
                    if report is not None:
                        reports.append(report)
        return tuple(reports)

    def _look_after(self, device: str, users: Users) -> DaemonReport | None:
        daemon = self._daemon(device)
        try:
            if daemon.running():
                daemon.ask("get_server_list")
                self._misses.pop(device, None)
                return None
            why = "had ended"
        except NoAnswerError as error:
            self._misses[device] = self._misses.get(device, 0) + 1
            if self._misses[device] < _MISSES:
                return DaemonReport(device=device, healthy=False, message=str(error))
            why = "did not answer"
        except HardwareError as error:
            why = f"failed ({error})"
        return self._restart(device, daemon, users, why)

    def _restart(self, device: str, daemon: MpsDaemon, users: Users, why: str) -> DaemonReport:
        self._misses.pop(device, None)
        try:
            daemon.stop()
            self._exclusive_again(device)
            daemon.start()
            self._limit(daemon, users)
        except GpudraError as error:
            return DaemonReport(
                device=device,
                healthy=False,
                message=f"the MPS daemon {why} and cannot be started again: {error}",
            )
        return DaemonReport(
            device=device, healthy=True, message=f"the MPS daemon {why} and was started again"
        )

    def _exclusive_again(self, device: str) -> None:
        """A reset of the card, which may be why the daemon ended, loses the mode."""
        known = self._known(device)
        if known.get("computeMode") is not None and self._lib.tuning is not None:
            self._lib.tuning.set_compute_mode(str(known["card"]), ComputeMode.EXCLUSIVE_PROCESS)

    def sweep(self, live: frozenset[str]) -> tuple[str, ...]:
        """Ends users whose claim is not alive, and daemons without any user."""
        done = []
        for folder in folders_of(self._folder):
            with self._lock(folder.name):
                users = Users(folder)
                gone = [claim for claim in users.all() if claim not in live]
                if not gone and users.all():
                    continue
                try:
                    for claim in gone:
                        users.remove(claim)
                    self._leave(folder.name)
                except GpudraError as error:
                    log.warning("cannot end MPS, will try again", error=str(error))
                    continue
                done.append(f"MPS of {folder.name} for claims {', '.join(gone) or 'of nobody'}")
        return tuple(done)

    def _daemon(self, device: str) -> MpsDaemon:
        found = self._daemons.get(device)
        if found is None:
            folder = self._folder / checked_device(device)
            found = MpsDaemon(folder, self._launch or MpsLaunch())
            self._daemons[device] = found
        found.target = str(self._known(device).get("target", ""))
        return found

    def _settings(self, device: str) -> Path:
        return self._folder / checked_device(device) / _SETTINGS

    def _known(self, device: str) -> dict[str, Any]:
        try:
            found = orjson.loads(self._settings(device).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _users(self, device: str) -> Users:
        return Users(self._folder / checked_device(device))

    def _lock(self, device: str) -> threading.RLock:
        with self._guard:
            return self._locks.setdefault(device, threading.RLock())


def _largest(users: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """The largest memory (0: none is limited) and compute (100: somebody has no limit)."""
    memories = [int(one.get("memoryMiB") or 0) for one in users]
    computes = [int(one.get("compute") or _ALL) for one in users]
    return (max(memories, default=0) if all(memories) else 0, max(computes, default=_ALL))
