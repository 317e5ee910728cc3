# SPDX-License-Identifier: Apache-2.0
"""Every error that gpudra raises on purpose, in one tree.

An error says what happened, to which object, and what to do::

    GpudraError
    ├── InputError                what a person or a file gave us cannot be used
    ├── HardwareError             the device library could not answer
    │   └── DeviceGoneError       the card does not answer any more
    ├── StateError                what we keep on disk is missing, damaged or from the future
    ├── ClaimError                one claim cannot be served; others are not touched
    │   ├── ClaimChangedError     the API holds another claim under this name, or none
    │   └── DeviceInUseError      a device of the claim is held by another claim
    └── ApiError                  the Kubernetes API answered with a failure
        ├── NotFoundError         404
        ├── ConflictError         409, somebody else wrote first
        │   └── AlreadyExistsError
        ├── ExpiredError          410, in any of its forms
        ├── ForbiddenError        401 and 403; names the verb and the resource
        ├── InvalidError          422 and 400; names the fields
        └── UnavailableError      worth trying again: no connection, 5xx, time-out
            └── TooManyRequestsError  429, with the wait that the server asked for

Callers catch the narrowest class that they can handle. ``retryable`` tells whether the same
call may succeed later without anybody changing anything.
"""

from collections.abc import Sequence
from typing import ClassVar


class GpudraError(Exception):
    """Root of the tree.

    Args:
        what: what happened, as a sentence without a full stop.
        obj: the object it happened to, as a person would name it (``claim default/a``).
        hint: what to do about it.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, obj: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.obj = obj
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.obj}: {self.what}" if self.obj else self.what
        return f"{text}; {self.hint}" if self.hint else text


class InputError(GpudraError):
    """A value from a person or a file cannot be used.

    Args:
        what: what is wrong with the value.
        field: path of the field, for example ``spec.devices[3].name``.
        file: name of the file, when it came from one.
        line: line in the file, counted from 1.
        obj: the object that the field belongs to.
        hint: what to write instead.
    """

    def __init__(
        self,
        what: str,
        *,
        field: str = "",
        file: str = "",
        line: int | None = None,
        obj: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what, obj=obj, hint=hint)
        self.field = field
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        where = ": ".join(part for part in (place, self.obj, self.field) if part)
        text = f"{where}: {self.what}" if where else self.what
        return f"{text}; {self.hint}" if self.hint else text

    def within(self, field: str = "", *, obj: str = "", file: str = "") -> "InputError":
        """The same error, seen from the object that contains the value."""
        joined = field + ("" if not field or self.field.startswith("[") else ".") + self.field
        return InputError(
            self.what,
            field=(joined if self.field else field),
            file=file or self.file,
            line=self.line,
            obj=obj or self.obj,
            hint=self.hint,
        )


class HardwareError(GpudraError):
    """The device library could not answer; ``retryable`` because drivers come late and reload."""

    retryable = True


class DeviceGoneError(HardwareError):
    """The card does not answer any more (fallen off the bus, or unplugged)."""


class StateError(GpudraError):
    """Our own file is damaged, unwritable, or written by a newer version."""


class ClaimError(GpudraError):
    """One claim cannot be prepared, unprepared or allocated. Others go on."""


class ClaimChangedError(ClaimError):
    """The API holds no claim of this name, or one with another uid."""


class DeviceInUseError(ClaimError):
    """A device is held by another claim; the message names it."""

    retryable = True


class ApiError(GpudraError):
    """The Kubernetes API answered with a failure.

    Attributes:
        status: HTTP status code; 0 when there was no answer.
        reason: the ``reason`` of the Status object, for example ``Conflict``.
    """

    def __init__(
        self, what: str, *, status: int = 0, reason: str = "", obj: str = "", hint: str = ""
    ) -> None:
        super().__init__(what, obj=obj, hint=hint)
        self.status = status
        self.reason = reason


class NotFoundError(ApiError):
    """404: the object, the namespace or the whole API does not exist."""


class ConflictError(ApiError):
    """409: the object changed since it was read. Read again, then decide anew."""


class AlreadyExistsError(ConflictError):
    """409 on create: an object of this name exists."""


class ExpiredError(ApiError):
    """410: the resourceVersion or continue token is too old. Forget it and list again."""


class ForbiddenError(ApiError):
    """401 or 403: the account may not do this; the message names verb and resource."""


class InvalidError(ApiError):
    """422 or 400: the server refuses the object.

    Attributes:
        causes: pairs of field path and message, as the server gave them.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int = 422,
        reason: str = "Invalid",
        causes: Sequence[tuple[str, str]] = (),
        obj: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what, status=status, reason=reason, obj=obj, hint=hint)
        self.causes = tuple(causes)


class UnavailableError(ApiError):
    """No connection, a time-out, or a 5xx answer: try again after a while."""

    retryable = True


class TooManyRequestsError(UnavailableError):
    """429.

    Attributes:
        retry_after: seconds to wait at least, as the server asked.
    """

    def __init__(
        self, what: str, *, retry_after: float, status: int = 429, obj: str = "", hint: str = ""
    ) -> None:
        super().__init__(what, status=status, reason="TooManyRequests", obj=obj, hint=hint)
        self.retry_after = retry_after
