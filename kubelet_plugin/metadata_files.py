# SPDX-License-Identifier: Apache-2.0
"""The files of device metadata on the host (KEP-5304), and the step of Prepare that writes them.

One folder per claim below the agent's runtime folder, one file per request in it; the claim's CDI
file mounts them into containers. They are gone after a reboot, as are the containers, and come
back with the claim's other files.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from gpudra.api.codec import Json
from gpudra.api.errors import GpudraError
from gpudra.driver.core import cdi, metadata
from gpudra.driver.core.edits import ContainerEdits
from gpudra.driver.core.metadata import Attributes
from gpudra.driver.core.prepare import PreparePlan, Step
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.sharing.users import remove_tree
from gpudra.kubelet_plugin.spent import Phase, spending

FOLDER = "metadata"
log = get_logger(__name__)


class MetadataFiles:
    """The folders of one driver's claims. Everything blocks.

    Args:
        runtime_dir: of the agent, the same path for it, the host and the container runtime.
        driver: this driver's name; several may share the folder.
    """

    def __init__(
        self, runtime_dir: Path, driver: str, *, observe: files.Observe = files.ignore
    ) -> None:
        self.driver = driver
        self._folder = runtime_dir / FOLDER
        self._observe = observe

    def path(self, step: Step) -> Path:
        """The claim's folder."""
        return self._folder / metadata.folder_of(step)

    def write(self, path: Path, document: Mapping[str, Any]) -> bool:
        """Puts one file in place unless it says the same already; whether it wrote.

        Raises:
            StateError: it cannot be written.
        """
        before = _read(path)
        generation = _generation(before)
        if before and before == metadata.versions(document, generation):
            return False
        objects = metadata.versions(document, generation + 1)
        content = b"".join(
            orjson.dumps(one, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            for one in objects
        )
        files.make_folder(path.parent, mode=0o755)
        # Not synced: it has to last as long as containers do. Whoever runs in one may read it.
        files.write_atomically(path, content, sync=False, observe=self._observe, mode=0o644)
        return True

    def remove(self, step: Step) -> None:
        """Removes a claim's folder; nothing happens if there is none.

        Raises:
            StateError: it cannot be removed.
        """
        remove_tree(self.path(step))

    def sweep(self, live: Iterable[str]) -> tuple[str, ...]:
        """Removes folders of this driver's claims that are not among ``live``; says which."""
        kept = {cdi.metadata_folder(self.driver, uid) for uid in live}
        prefix = cdi.metadata_folder(self.driver, "")
        done = []
        for folder in sorted(self._folder.glob(f"{prefix}*")):
            if folder.name in kept:
                continue
            try:
                remove_tree(folder)
            except GpudraError as error:
                log.warning("cannot remove a folder, will try again", error=str(error))
                continue
            done.append(f"metadata of claim {folder.name.removeprefix(prefix)}")
        return tuple(done)


class MetadataStep:
    """StepHandler of the metadata files.

    Args:
        store: where they lie.
        attributes: of a device, as they are published.
    """

    lasting = False

    def __init__(self, store: MetadataFiles, attributes: Attributes) -> None:
        self._store = store
        self._attributes = attributes

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Writes the files.

        Raises:
            StateError: the folder cannot be written.
        """
        self._write(step, plan)
        return {}

    def restore(self, step: Step, plan: PreparePlan) -> bool:
        """Writes them again where they are missing, damaged or not true any more."""
        return self._write(step, plan)

    def present(self, step: Step) -> bool:
        """Whether the claim has its folder."""
        return self._store.path(step).is_dir()

    def undo(self, step: Step) -> None:
        """Removes the claim's folder."""
        with spending(Phase.CDI):
            self._store.remove(step)

    def edits(self, step: Step, plan: PreparePlan) -> dict[str, ContainerEdits]:
        """By CDI device name, what the CDI file has to say about them."""
        folder = str(self._store.path(step))
        return metadata.mounts(plan, step, self._store.driver, folder)

    def _write(self, step: Step, plan: PreparePlan) -> bool:
        folder = self._store.path(step)
        with spending(Phase.CDI):
            found = metadata.documents(plan, self._store.driver, self._attributes)
            wrote = [
                self._store.write(folder / metadata.file_name(request), document)
                for request, document in found.items()
            ]
        return any(wrote)


def _read(path: Path) -> list[dict[str, Any]]:
    """The objects of a file; none if it is missing or damaged."""
    try:
        # Each object ends with a brace at the beginning of a line, which no text in it can hold.
        parts = path.read_text(encoding="utf-8").split("\n}\n")
        found = [orjson.loads(f"{part}\n}}") for part in parts[:-1]]
    except (OSError, ValueError):
        return []
    return [one for one in found if isinstance(one, dict)]


def _generation(objects: Iterable[Mapping[str, Any]]) -> int:
    """Of a file; 0 if it does not say."""
    for one in objects:
        noted = one.get("metadata")
        number = noted.get("generation") if isinstance(noted, Mapping) else None
        if isinstance(number, int):
            return number
    return 0
