# SPDX-License-Identifier: Apache-2.0
"""Compiled modules for an image; used by ``ownimage``.

A container's root file system is read-only, so what is not compiled in the image is compiled at
every start of it: seconds of a whole core. Files that this machine has compiled already are used.
"""

import importlib.util
import marshal
from pathlib import Path

_HEADER = 16
_UNCHECKED_HASH = (1).to_bytes(4, "little")
"""PEP 552: a hash-based pyc that the import system does not compare with its source."""


def compiled(source: Path, name: str) -> bytes:
    """Content of the ``.pyc`` of a module, the same whatever the times of files are.

    Args:
        source: the ``.py`` file.
        name: where it lies in the image, for tracebacks.

    Raises:
        SyntaxError: the file is no module for this Python.
    """
    text = source.read_bytes()
    code = _from_cache(source) or marshal.dumps(
        compile(text, name, "exec", dont_inherit=True, optimize=0)
    )
    digest = importlib.util.source_hash(text)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + digest + code


def _from_cache(source: Path) -> bytes | None:
    """The marshalled code that Python keeps beside the source, if it is of this very source."""
    cached = Path(importlib.util.cache_from_source(str(source), optimization=""))
    try:
        content = cached.read_bytes()
    except OSError:  # not compiled yet
        return None
    stat = source.stat()
    wanted = (
        importlib.util.MAGIC_NUMBER
        + bytes(4)
        + (int(stat.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
        + (stat.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    )
    return content[_HEADER:] if content[:_HEADER] == wanted else None
