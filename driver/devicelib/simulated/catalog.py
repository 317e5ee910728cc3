# SPDX-License-Identifier: Apache-2.0
"""Finds and reads Hardware files: shipped profiles by name, others by path."""

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.api.hardware import Board, Hardware, HardwareCatalog
from gpudra.api.yamlfile import Document, parse_documents
from gpudra.driver.devicelib.files import read_documents

_PACKAGE = "gpudra.driver.devicelib.simulated.profiles"
_BOARDS = "boards.yaml"


def profile_names() -> tuple[str, ...]:
    """The shipped profiles, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(".yaml")
            for entry in resources.files(_PACKAGE).iterdir()
            if entry.name.endswith(".yaml") and entry.name != _BOARDS
        )
    )


@functools.lru_cache(maxsize=1)
def board_catalog() -> Mapping[str, Board]:
    """The shipped boards by name."""
    (document,) = _shipped(_BOARDS)
    return document.validate(HardwareCatalog).boards


def load_hardware(source: str) -> Hardware:
    """A Hardware file with every board that it uses filled in.

    Args:
        source: name of a shipped profile, or path of a file (anything with a slash or ending in
            ``.yaml``, ``.yml`` or ``.json``).

    Raises:
        InputError: there is no such profile or file, or it is wrong; with file, line and field.
    """
    if source in profile_names():
        documents = _shipped(f"{source}.yaml")
    elif "/" in source or source.endswith((".yaml", ".yml", ".json")) or Path(source).is_file():
        documents = read_documents(Path(source))
    else:
        raise InputError(
            f"there is no hardware profile {source!r}",
            hint=f"use a file or one of {', '.join(profile_names())}",
        )
    if len(documents) != 1:
        raise InputError(
            f"holds {len(documents)} documents",
            file=source,
            hint="write exactly one of kind Hardware",
        )
    return _with_boards(documents[0])


def _shipped(name: str) -> tuple[Document, ...]:
    text = resources.files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")
    return parse_documents(text, name)


def _with_boards(document: Document) -> Hardware:
    hardware = document.validate(Hardware)
    boards = {**board_catalog(), **hardware.spec.boards}
    for index, gpu in enumerate(hardware.spec.gpus):
        path = ("spec", "gpus", index, "board")
        if gpu.board not in boards:
            raise document.error(
                f"there is no board {gpu.board!r}",
                path,
                hint=f"describe it in spec.boards or use one of {', '.join(sorted(boards))}",
            )
        _check_instances(document, index, hardware, boards[gpu.board])
    used = {gpu.board for gpu in hardware.spec.gpus}
    spec = hardware.spec.model_copy(
        update={"boards": {name: boards[name] for name in sorted(used)}}
    )
    return hardware.model_copy(update={"spec": spec})


def _check_instances(document: Document, index: int, hardware: Hardware, board: Board) -> None:
    """MIG at start must be possible on the board."""
    state = hardware.spec.gpus[index].mig
    path = ("spec", "gpus", index, "mig")
    if board.mig is None and (state.enabled or state.instances):
        raise document.error(f"{board.product_name} has no MIG", path)
    for number, wanted in enumerate(state.instances):
        found = (
            next((one for one in board.mig.profiles if one.id == wanted.profile), None)
            if (board.mig)
            else None
        )
        where = (*path, "instances", number)
        if found is None:
            raise document.error(f"the board has no MIG profile {wanted.profile}", where)
        if wanted.start not in found.placements.starts:
            raise document.error(f"{found.name} cannot start at {wanted.start}", where)
