# SPDX-License-Identifier: Apache-2.0
"""Who uses a device's shared runtime: one small file per claim, in a folder of the device.

The count of users is what is on the disk, so a crash between any two steps leaves a folder from
which the next step can go on.
"""

import shutil
from pathlib import Path
from typing import Any

import orjson

from gpudra.api.errors import InputError, StateError
from gpudra.api.names import check_dns_label
from gpudra.driver.core import cdi
from gpudra.kubelet_plugin import files

_USERS = "users"


class Users:
    """The users of one device.

    Args:
        folder: of the device; made with the first user.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._users = folder / _USERS

    def add(self, claim_uid: str, facts: dict[str, Any]) -> None:
        """Notes a user, with what others need to know of it.

        Raises:
            StateError: the file cannot be written.
        """
        files.make_folder(self._users, mode=0o755)
        path = self._users / cdi.check_uid(claim_uid)
        files.write_atomically(path, orjson.dumps(facts), sync=False)

    def remove(self, claim_uid: str) -> bool:
        """Forgets a user; whether there was one.

        Raises:
            StateError: the file cannot be removed.
        """
        return files.remove(self._users / cdi.check_uid(claim_uid))

    def all(self) -> dict[str, dict[str, Any]]:
        """Facts by claim. A file that was cut off counts as a user without facts."""
        found: dict[str, dict[str, Any]] = {}
        with files.explained(self._users, "read the folder"):
            paths = sorted(self._users.glob("[!.]*")) if self._users.is_dir() else []
        for path in paths:
            try:
                facts = orjson.loads(path.read_bytes())
            except (OSError, orjson.JSONDecodeError):
                facts = {}
            found[path.name] = facts if isinstance(facts, dict) else {}
        return found

    def clear(self) -> None:
        """Removes the whole folder of the device.

        Raises:
            StateError: something in it cannot be removed.
        """
        remove_tree(self.folder)


def folders_of(parent: Path) -> tuple[Path, ...]:
    """The devices that have a folder."""
    return tuple(sorted(one for one in parent.iterdir() if one.is_dir())) if parent.is_dir() else ()


def remove_tree(folder: Path) -> None:
    """Removes a folder with everything in it; nothing happens if there is none.

    Raises:
        StateError: the system refuses.
    """
    with files.explained(folder, "remove the folder"):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if folder.exists():  # something inside went away meanwhile
                shutil.rmtree(folder)


def checked_device(name: str) -> str:
    """The name of a device that is safe as the name of a folder.

    Raises:
        StateError: it is none.
    """
    try:
        return check_dns_label(name, "device")
    except InputError as error:
        raise StateError(f"{name!r} is not the name of a device") from error
