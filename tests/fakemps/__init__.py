# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's MPS control program, that can be told to misbehave."""

import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "nvidia-cuda-mps-control"


def installed(folder: Path) -> Path:
    """The program in a folder, for this very interpreter: `env python3` may be a slow wrapper."""
    made = folder / PROGRAM.name
    _, _, body = PROGRAM.read_text().partition("\n")
    folder.mkdir(parents=True, exist_ok=True)
    made.write_text(f"#!{Path(sys.executable).resolve()} -IS\n{body}")
    made.chmod(0o755)
    return made


class FakeMps:
    """What the stand-in does, and what it was told.

    Args:
        folder: of the device's daemon, as the backend under test makes it.
        moods: folder of the file that says how all daemons behave.
    """

    def __init__(self, folder: Path, moods: Path) -> None:
        self._folder = folder
        self._mood = moods / "mood"

    @staticmethod
    def environment(moods: Path) -> dict[str, str]:
        """Variables of the process that starts daemons."""
        return {"FAKEMPS_MOOD": str(moods / "mood")}

    def behave(self, mood: str) -> None:
        """From now on: ok, hang, die, refuse, stubborn; or at the start: no-start, mute."""
        aside = self._mood.with_suffix(".new")
        aside.write_text(mood)
        aside.replace(self._mood)

    def commands(self) -> list[str]:
        """Every command that a daemon of this folder has got."""
        path = self._folder / "log/commands"
        return path.read_text().splitlines() if path.exists() else []
