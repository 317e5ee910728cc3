# SPDX-License-Identifier: Apache-2.0
"""Reads YAML files that describe hardware, for the backends that are made of files."""

from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.api.yamlfile import Document, parse_documents

_MAX_BYTES = 16 * 1024 * 1024


def read_documents(path: Path) -> tuple[Document, ...]:
    """All documents of a file.

    Raises:
        InputError: the file cannot be read, is not text, or is not YAML.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > _MAX_BYTES:
            raise InputError(f"is larger than {_MAX_BYTES} bytes", file=str(path))
        return parse_documents(raw.decode(), str(path))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", file=str(path), hint="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", file=str(path)) from error
