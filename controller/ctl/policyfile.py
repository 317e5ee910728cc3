# SPDX-License-Identifier: Apache-2.0
"""Reads a NodePolicy from a file, for ``gpudra slices --policy``."""

from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.api.nodepolicy import NodePolicy
from gpudra.driver.devicelib.files import read_documents


def load_policy(file: str) -> NodePolicy:
    """The one policy that a file holds.

    Raises:
        InputError: it cannot be read or is wrong; with file, line and field.
    """
    documents = read_documents(Path(file))
    if len(documents) != 1:
        raise InputError(
            f"holds {len(documents)} documents", file=file, hint="write exactly one NodePolicy"
        )
    return documents[0].validate(NodePolicy)
