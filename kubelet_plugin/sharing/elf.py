# SPDX-License-Identifier: Apache-2.0
"""Which functions a shared library offers, read from the file: nothing of it is run or loaded.

A 64-bit little-endian ELF file has a table of sections; the one of type SHT_DYNSYM lists the
dynamic symbols, and its ``sh_link`` is the section with their names (System V ABI, gABI chapters
"Sections" and "Symbol Table").
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import InputError

_MAGIC = b"\x7fELF\x02\x01"  # 64 bit, little-endian
_SHARED_OBJECT = 3
_DYNSYM = 11
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_GLOBAL_OR_WEAK = (1, 2)
_DEFAULT, _PROTECTED = 0, 3
MACHINES = {"x86_64": 62, "aarch64": 183}
# The largest build known is below 1 MB; whatever is larger is not the library.
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """What matters of the file.

    Attributes:
        machine: number of the architecture, see MACHINES.
        exported: names of functions and variables that others can find.
    """

    machine: int
    exported: frozenset[str]


def read_library(path: Path) -> SharedLibrary:
    """Reads a shared library.

    Raises:
        InputError: the file is missing, or no 64-bit little-endian shared library.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError("is too large to be such a library", file=str(path))
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from error
    try:
        return _parse(content)
    except (struct.error, ValueError, IndexError) as error:
        raise InputError(f"is no shared library: {error}", file=str(path)) from error


def _parse(content: bytes) -> SharedLibrary:
    if not content.startswith(_MAGIC):
        raise ValueError("not a 64-bit little-endian ELF file")
    kind, machine = struct.unpack_from("<HH", content, 16)
    if kind != _SHARED_OBJECT:
        raise ValueError("not a shared object")
    (table,) = struct.unpack_from("<Q", content, 40)
    entry, count = struct.unpack_from("<HH", content, 58)
    if entry != _SECTION.size or not count:
        raise ValueError("it has no table of sections")
    sections = [_SECTION.unpack_from(content, table + entry * index) for index in range(count)]
    exported: set[str] = set()
    for section in sections:
        if section[1] == _DYNSYM:
            names = sections[section[6]]
            strings = content[names[4] : names[4] + names[5]]
            exported |= set(_exported(content[section[4] : section[4] + section[5]], strings))
    return SharedLibrary(machine, frozenset(exported))


def _exported(symbols: bytes, strings: bytes) -> Iterator[str]:
    usable = len(symbols) - len(symbols) % _SYMBOL.size
    for name, info, other, section, _value, _size in _SYMBOL.iter_unpack(symbols[:usable]):
        defined = section != 0 and info >> 4 in _GLOBAL_OR_WEAK
        if defined and other & 3 in (_DEFAULT, _PROTECTED):
            yield strings[name : strings.index(b"\0", name)].decode("ascii", "replace")
