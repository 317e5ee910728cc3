# SPDX-License-Identifier: Apache-2.0
"""The connection to NVML: loading it late, starting it again after a driver reload, asking it.

pynvml keeps one library for the process. The session owns it: it loads the library by an explicit
path or by its ordinary name, and lets go of it when the driver went away, so that a driver that
was installed or replaced later is found without restarting the agent.
"""

import _ctypes
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pynvml

from gpudra.api.errors import DeviceGoneError, HardwareError
from gpudra.driver.core.inventory import ReadingProblem

P = ParamSpec("P")
R = TypeVar("R")

# "There is no such reading on this card" in the ways that drivers of different age say it.
_ABSENT = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_NO_DATA,
}
_GONE = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND}
# After these the library must be let go of and loaded anew.
_RELOAD = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}


# Told of every call into the library: seconds, and whether it answered.
OnCall = Callable[[float, bool], object]


def is_gone(error: pynvml.NVMLError) -> bool:
    """Whether the card of the call does not answer any more."""
    return error.value in _GONE


def is_absent(error: pynvml.NVMLError) -> bool:
    """Whether the card or the driver simply has no such reading."""
    return error.value in _ABSENT


class Session:
    """NVML, started when first needed.

    Args:
        library: path of ``libnvidia-ml.so.1``; None takes the dynamic linker's choice.
        on_call: told of every call, from whichever thread makes it.
    """

    def __init__(self, library: Path | None = None, on_call: OnCall | None = None) -> None:
        self._on_call = on_call
        self._library = library
        self._lock = threading.Lock()
        self._unloaded = threading.Condition(self._lock)
        self._started = False
        self._users = 0  # threads inside the library now
        self._must_unload = False
        self._handles: dict[str, Any] = {}
        self.generation = 0  # grows with every start: handles of an older one are void

    def start(self) -> None:
        """Loads and starts NVML unless it runs.

        Raises:
            HardwareError: there is no library, no driver behind it, or somebody is still inside the
                one that is to be let go of.
        """
        with self._lock:
            if self._started:
                return
            if self._must_unload:
                raise HardwareError("NVML is being restarted", hint="it is tried again at once")
            try:
                if self._library is not None:
                    pynvml.nvmlLib = ctypes.CDLL(str(self._library))
                pynvml.nvmlInit()
            except (OSError, pynvml.NVMLError) as error:
                self._unload()
                raise HardwareError(
                    f"NVML cannot be used ({error})",
                    obj=f"library {self._library or 'libnvidia-ml.so.1'}",
                    hint="install the NVIDIA driver, or name the library of its container root",
                ) from error
            self._started = True
            self.generation += 1
            self._handles.clear()

    def restart_after(self, error: pynvml.NVMLError) -> None:
        """Lets go of the library if the error says that the driver behind it went away."""
        if error.value in _RELOAD:
            self.stop()

    def stop(self) -> None:
        """Ends NVML and forgets the library, as soon as no thread is inside it.

        Never waits, so two threads may find the driver gone at once. May be called twice.
        """
        with self._lock:
            if self._started:
                self._started = False
                self._must_unload = True
            self._unload_if_unused()

    def wait_unloaded(self, seconds: float) -> None:
        """Returns when a stopped library is let go of; after that time in any case."""
        with self._unloaded:
            self._unloaded.wait_for(lambda: not self._must_unload, seconds)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Around everything that calls the library: it is not closed meanwhile. May be nested."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._unload_if_unused()

    def _unload_if_unused(self) -> None:
        if not self._must_unload or self._users:
            return
        with suppress(pynvml.NVMLError):  # a driver that is gone cannot be told good-bye
            pynvml.nvmlShutdown()
        self._unload()
        self._must_unload = False
        self._unloaded.notify_all()

    def _unload(self) -> None:
        """Closes the library: the linker would hand out the old file for ever otherwise."""
        library = pynvml.nvmlLib
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it has no public way to forget
        if library is not None:
            _ctypes.dlclose(library._handle)  # noqa: SLF001 - nor has ctypes one to close

    def handle(self, uuid: str) -> Any:
        """The handle of a card, looked up once per start (by uuid this can take long under load).

        Raises:
            DeviceGoneError: the card does not answer.
            HardwareError: NVML does not answer, or knows no such card.
        """
        self.start()
        found = self._handles.get(uuid)
        if found is None:
            with self.calling(f"GPU {uuid}"):
                found = self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        return found

    def remember(self, uuid: str, handle: Any) -> None:
        """Notes the handle of a card that was found on the way."""
        self._handles[uuid] = handle

    def forget(self, uuid: str) -> None:
        """Drops the handle of a card that went away."""
        self._handles.pop(uuid, None)

    @contextmanager
    def calling(self, obj: str) -> Iterator[None]:
        """Turns NVML's errors into ours, named after the object of the call.

        Raises:
            DeviceGoneError: the card does not answer.
            HardwareError: any other failure.
        """
        began, answered = time.monotonic(), False
        try:
            with self.using():
                yield
            answered = True
        except pynvml.NVMLError as error:
            self.restart_after(error)
            kind = DeviceGoneError if is_gone(error) else HardwareError
            raise kind(f"NVML says: {error}", obj=obj) from error
        finally:
            if self._on_call is not None:
                self._on_call(time.monotonic() - began, answered)


class Asker:
    """Asks one card; a reading that fails costs only itself and is noted."""

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self.problems: list[ReadingProblem] = []

    def ask(
        self, reading: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """The answer, or None.

        Raises:
            pynvml.NVMLError: the card is lost; nothing else can be asked of it.
        """
        try:
            return call(*args, **kwargs)
        except pynvml.NVMLError as error:
            if is_gone(error):
                raise
            if not is_absent(error):
                self.note(reading, str(error))
            return None

    def text(
        self, reading: str, call: Callable[P, str | bytes], *args: P.args, **kwargs: P.kwargs
    ) -> str | None:
        """A text, whatever its bytes: what is no UTF-8 is shown with replacement characters."""
        try:
            value = self.ask(reading, call, *args, **kwargs)
        except UnicodeDecodeError as error:
            self.note(reading, "is not UTF-8")
            value = error.object
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return value.strip("\x00 ") or None if value is not None else None

    def note(self, reading: str, message: str) -> None:
        """Keeps what went wrong for the log and for `gpudra gather`."""
        self.problems.append(ReadingProblem(gpu=self.gpu, reading=reading, message=message))
