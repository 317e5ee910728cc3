# SPDX-License-Identifier: Apache-2.0
"""A cheap look at a card: enough to know whether reading all of it again is worth while."""

from collections.abc import Hashable
from typing import Any

import pynvml

# What a card without the call, or one that does not answer, says instead: the error's number.
Answer = Any


def card_fingerprint(index: int) -> Hashable:
    """Uuid, recovery action, MIG mode and instances, and fabric state of one card.

    An error is an answer like any other; when it changes, the card is worth reading.
    """
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        return ("error", error.value)
    mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return (
        uuid,
        _ask(_recovery_action, handle),
        _ask(_uncorrected_ecc, handle),
        tuple(mode) if isinstance(mode, list) else mode,
        _instances(handle, mode),
        _ask(_fabric_state, handle),
    )


def _ask(call: Any, *arguments: Any) -> Answer:
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        return ("error", error.value)


def _recovery_action(handle: Any) -> tuple[int, int]:
    fields = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return (fields[0].nvmlReturn, fields[0].value.uiVal)


def _uncorrected_ecc(handle: Any) -> int:
    found = pynvml.nvmlDeviceGetTotalEccErrors(
        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    )
    return int(found)


def _fabric_state(handle: Any) -> tuple[int, int]:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, pynvml.byref(info))
    return (info.state & 0xFF, info.status)


def _instances(handle: Any, mode: Answer) -> tuple[Answer, ...]:
    """Uuids of the MIG devices; nothing where MIG is off."""
    if not isinstance(mode, list) or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return ()
    count = _ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    if not isinstance(count, int):
        return (count,)
    return tuple(_ask(_instance, handle, number) for number in range(count))


def _instance(handle: Any, number: int) -> Answer:
    return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
