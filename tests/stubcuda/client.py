# SPDX-License-Identifier: Apache-2.0
"""A CUDA program: takes commands on stdin, calls the driver API, prints one answer a line.

    uuid DEVICE            which card that is
    total DEVICE           cuDeviceTotalMem
    free DEVICE            cuMemGetInfo, the free part
    alloc DEVICE BYTES     the CUresult of cuMemAlloc
    managed DEVICE BYTES   of cuMemAllocManaged
    release DEVICE         frees what was allocated last

Started by tests as a container's process would be; uses nothing but ctypes.
"""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def checked(result: int, call: str) -> None:
    """Ends the program if a call that has to succeed does not."""
    if result:
        sys.exit(f"{call}: {result}")


class Program:
    """One process with a primary context per device."""

    def __init__(self) -> None:
        checked(cuda.cuInit(0), "cuInit")
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._chunks: list[ctypes.c_uint64] = []

    def do(self, words: list[str]) -> str:
        """One command."""
        name, device = words[0], int(words[1])
        if name == "uuid":
            raw = (ctypes.c_ubyte * 16)()
            checked(cuda.cuDeviceGetUuid_v2(raw, device), "cuDeviceGetUuid")
            return bytes(raw).hex()
        if name == "total":
            size = ctypes.c_size_t()
            checked(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device), "cuDeviceTotalMem")
            return str(size.value)
        self._enter(device)
        if name == "free":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            checked(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
            return str(free.value)
        if name == "release":
            return str(cuda.cuMemFree_v2(self._chunks.pop()))
        return str(self._allocate(name, int(words[2])))

    def _allocate(self, name: str, size: int) -> int:
        chunk = ctypes.c_uint64()
        if name == "managed":
            result = cuda.cuMemAllocManaged(ctypes.byref(chunk), ctypes.c_size_t(size), 1)
        else:
            result = cuda.cuMemAlloc_v2(ctypes.byref(chunk), ctypes.c_size_t(size))
        if result == 0:
            self._chunks.append(chunk)
        return int(result)

    def _enter(self, device: int) -> None:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            checked(
                cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                "cuDevicePrimaryCtxRetain",
            )
            self._contexts[device] = context
        checked(cuda.cuCtxSetCurrent(self._contexts[device]), "cuCtxSetCurrent")


if __name__ == "__main__":
    program = Program()
    for line in sys.stdin:
        sys.stdout.write(f"{program.do(line.split())}\n")
        sys.stdout.flush()
