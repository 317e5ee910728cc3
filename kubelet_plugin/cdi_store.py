# SPDX-License-Identifier: Apache-2.0
"""The folder from which the container runtime reads CDI files: one file for each prepared claim.

Only files that carry this driver's prefix are ever looked at. Everything blocks.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gpudra.api.errors import HardwareError
from gpudra.driver.core import cdi
from gpudra.driver.core.edits import ContainerEdits
from gpudra.kubelet_plugin import files


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A claim's file as it lies in the folder; ``document`` is None if it is not readable JSON."""

    name: str
    claim_uid: str
    document: Mapping[str, Any] | None

    def devices(self) -> list[str]:
        """Names of the allocated devices, as far as the file tells."""
        prefix = f"{self.claim_uid}-"
        names = cdi.device_names(self.document or {})
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


class CdiStore:
    """Files of one driver in one folder."""

    def __init__(self, folder: Path, driver: str, *, observe: files.Observe = files.ignore) -> None:
        self.folder = folder
        self.driver = driver
        self._observe = observe

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Puts a whole file in place.

        Not synced: after a power cut no container runs, and the file is written again before the
        first one starts. The folder is in memory on most nodes anyway.

        Raises:
            StateError: the folder cannot be written; nothing is left of the try.
        """
        content = orjson.dumps(document, option=orjson.OPT_INDENT_2)
        # 0644: containerd may run as another user, and the file holds no secret.
        files.write_atomically(
            self.folder / name, content, sync=False, observe=self._observe, mode=0o644
        )

    def remove(self, name: str) -> bool:
        """Removes a file; False if there was none.

        Raises:
            StateError: the folder cannot be written.
        """
        return files.remove(self.folder / name)

    def differs(self, name: str, document: Mapping[str, Any]) -> bool:
        """Whether the file is missing, broken, or says something else."""
        found = self.read(name)
        return found is None or found.document != document

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.folder / name).exists()

    def read(self, name: str) -> FoundFile | None:
        """One file; None if there is none or it is not this driver's."""
        uid = cdi.claim_uid_of(self.driver, name)
        if uid is None:
            return None
        with files.explained(self.folder / name, "read"):
            try:
                raw = (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError:
            document = None
        return FoundFile(name, uid, document if isinstance(document, dict) else None)

    def list(self) -> list[FoundFile]:
        """Every file of this driver, ascending by name.

        Raises:
            StateError: the folder cannot be read.
        """
        with files.explained(self.folder, "list"):
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 - names only, no stat
        found = [self.read(name) for name in names if cdi.claim_uid_of(self.driver, name)]
        return [one for one in found if one is not None]

    def sweep_temporary(self) -> int:
        """Removes what writers that were killed left behind; only while no other one writes."""
        prefix = f".{cdi.file_name(self.driver, '')[: -len('.json')]}"
        with files.explained(self.folder, "list"):
            names = os.listdir(self.folder)  # noqa: PTH208 - names only, no stat
        stale = [
            name for name in names if name.startswith(prefix) and name.endswith(files.TEMPORARY)
        ]
        return sum(files.remove(self.folder / name) for name in stale)


def check_sources(edits: Iterable[ContainerEdits]) -> None:
    """Makes sure that the host has what the edits want to give.

    A runtime would find out later, with a message that names neither claim nor cause.

    Raises:
        HardwareError: a device node, mount source or hook is missing; the message names it.
    """
    for one in edits:
        sources = [node.host_path or node.path for node in one.device_nodes]
        sources += [mount.host_path for mount in one.mounts]
        sources += [hook.path for hook in one.hooks]
        for source in sources:
            if not os.path.exists(source):  # noqa: PTH110 - on the way of every prepare
                raise HardwareError(
                    f"{source} does not exist on this node",
                    hint="is the GPU driver loaded? the kubelet will try again",
                )
