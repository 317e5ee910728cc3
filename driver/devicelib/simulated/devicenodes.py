# SPDX-License-Identifier: Apache-2.0
"""Device files of simulated cards.

Where the process may make device nodes, each card gets one of its own below the state folder, with
the numbers of ``/dev/null``: harmless, and a missing file can be noticed and reported as on a real
node. Elsewhere ``/dev/null`` itself stands for every card.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from gpudra.api.errors import HardwareError

_NULL = Path("/dev/null")
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


class DeviceNodes:
    """Makes and finds the files. ``folder`` is created on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str) -> Path:
        """The file of that name; made if it is not there. Never replaces what is there.

        Raises:
            HardwareError: the state folder cannot be written.
        """
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                with suppress(FileExistsError):  # another thread was quicker
                    os.mknod(path, stat.S_IFCHR | 0o666, _NULL.stat().st_rdev)
                path.chmod(0o666)  # the umask does not count
        except PermissionError:
            return _NULL
        except OSError as error:
            raise HardwareError(
                f"cannot make the device file: {error.strerror}",
                obj=str(path),
                hint="give the process a state folder that it may write",
            ) from error
        return path
