# SPDX-License-Identifier: Apache-2.0
"""``health.json``: what cards told once and would not tell again, until the next boot.

Lost or damaged it costs what it says, nothing else: readings show most of it again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpudra.api.errors import StateError
from gpudra.driver.core.health import ECC, HARMLESS_XIDS, Cause, xid_of
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin import files

HEALTH_FILE = "health.json"
_VERSION = 1
log = get_logger(__name__)


class HealthStore:
    """The file in the agent's state folder; a boot resets cards, so it counts for one boot only."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._path = folder / HEALTH_FILE
        self._boot_id = boot_id
        self._written: dict[str, Any] | None = None

    def load(self, now: float) -> dict[str, tuple[Cause, ...]]:
        """Causes by card as they were saved; empty if there is nothing that counts."""
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
            if raw["version"] != _VERSION or raw["bootID"] != self._boot_id:
                return {}
            return {
                gpu: tuple(_cause(one, now) for one in causes)
                for gpu, causes in raw["cards"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the stored health is damaged and left out", error=repr(error))
            return {}

    def save(self, cards: Mapping[str, tuple[Cause, ...]]) -> None:
        """Writes what readings would not show again; nothing if that is on the disk already."""
        kept = {
            gpu: [_data(cause) for cause in causes if _is_told_once(cause)]
            for gpu, causes in cards.items()
        }
        content = {
            "version": _VERSION,
            "bootID": self._boot_id,
            "cards": {gpu: causes for gpu, causes in kept.items() if causes},
        }
        if content == self._written or (self._written is None and not content["cards"]):
            return
        try:
            files.write_atomically(self._path, json.dumps(content).encode(), sync=False)
        except StateError as error:
            log.warning("cannot store the health of the GPUs", error=str(error))
            return
        self._written = content


def _is_told_once(cause: Cause) -> bool:
    number = xid_of(cause.key)
    return cause.key == ECC or (number is not None and number not in HARMLESS_XIDS)


def _data(cause: Cause) -> dict[str, Any]:
    return {
        "key": cause.key,
        "message": cause.message,
        "gpuInstance": cause.gpu_instance_id,
        "confirmed": cause.confirmed,
    }


def _cause(raw: Mapping[str, Any], now: float) -> Cause:
    instance = raw["gpuInstance"]
    return Cause(
        key=str(raw["key"]),
        message=str(raw["message"]),
        gpu_instance_id=None if instance is None else int(instance),
        confirmed=bool(raw["confirmed"]),
        since=now,
    )
