# SPDX-License-Identifier: Apache-2.0
"""``v1.DRAPlugin``: turns the kubelet's messages into calls of the state machine, and back.

Every claim of a call gets its own answer and never spoils another's; the call itself does not
fail. What went wrong is told three times: in the answer (the kubelet puts it into a pod event), as
an Event on the claim, and in the log under the operation id that the answer carries.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from gpudra.api.errors import ClaimError, GpudraError, HardwareError, InputError
from gpudra.driver.core import cdi
from gpudra.driver.core.prepare import PreparedDevice
from gpudra.driver.kube.clock import Clock, within
from gpudra.driver.observability.logging import bound, current_op_id, get_logger, operation
from gpudra.kubelet_plugin.device_state import DeviceState, describe
from gpudra.kubelet_plugin.proto import dra_v1_pb2 as pb
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.spent import Account, opened

# The kubelet waits 45 s for a call; after that it learns nothing, of none of the call's claims.
ANSWER_WITHIN = 40.0
OK, AGAIN, REFUSED, FAILED = "ok", "again", "refused", "failed"
_FAILURES = {"prepare": "could not prepare", "unprepare": "could not unprepare"}
log = get_logger(__name__)


class Report(Protocol):
    """Where the outcome of each claim goes: metrics and Events."""

    def began(self, operation: str) -> None:
        """A claim entered ``prepare`` or ``unprepare``."""
        ...

    def ended(self, operation: str, outcome: str, seconds: float, account: Account) -> None:
        """It left, with OK, AGAIN, REFUSED or FAILED; ``account`` says what took the time."""
        ...

    def call_ended(self) -> None:
        """All claims of a call left."""
        ...

    def claim_failed(self, ref: ClaimRef, operation: str, message: str) -> None:
        """Something for the people who look at the claim."""
        ...


class DraService:
    """The servicer.

    Args:
        state: does the work.
        report: is told about every claim.
        clock: for durations, and for an answer in time.
    """

    def __init__(self, state: DeviceState, report: Report, *, clock: Clock) -> None:
        self._state = state
        self._report = report
        self._clock = clock
        self._monotonic = clock.monotonic

    async def prepare(
        self, request: pb.NodePrepareResourcesRequest
    ) -> pb.NodePrepareResourcesResponse:
        """NodePrepareResources."""
        with operation("prepare"):
            claims = _distinct(request.claims)
            answers = await asyncio.gather(*(self._prepare_one(ref) for ref in claims))
        self._report.call_ended()
        response = pb.NodePrepareResourcesResponse()
        for ref, answer in zip(claims, answers, strict=True):
            response.claims[ref.uid].CopyFrom(answer)
        return response

    async def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest
    ) -> pb.NodeUnprepareResourcesResponse:
        """NodeUnprepareResources."""
        with operation("unprepare"):
            claims = _distinct(request.claims)
            errors = await asyncio.gather(*(self._unprepare_one(ref) for ref in claims))
        self._report.call_ended()
        response = pb.NodeUnprepareResourcesResponse()
        for ref, error in zip(claims, errors, strict=True):
            response.claims[ref.uid].error = error
        return response

    async def _prepare_one(self, ref: ClaimRef) -> pb.NodePrepareResourceResponse:
        found: tuple[PreparedDevice, ...] = ()

        async def work() -> str:
            nonlocal found
            cdi.check_uid(ref.uid)
            found, again = await self._state.prepare(ref)
            devices = [device.device for device in found]
            log.info("prepared", devices=devices, again=again)
            return AGAIN if again else OK

        error = await self._watched("prepare", ref, work)
        if error:
            return pb.NodePrepareResourceResponse(error=error)
        return pb.NodePrepareResourceResponse(devices=[_device(one) for one in found])

    async def _unprepare_one(self, ref: ClaimRef) -> str:
        async def work() -> str:
            cdi.check_uid(ref.uid)
            await self._state.unprepare(ref)
            log.info("unprepared")
            return OK

        return await self._watched("unprepare", ref, work)

    async def _in_time(self, ref: ClaimRef, work: Coroutine[Any, Any, str]) -> str:
        """The outcome of one claim's work, which goes on when it is late.

        Raises:
            HardwareError: it is late: a claim whose card hangs must not cost others their answer.
        """
        try:
            return await within(self._clock, ANSWER_WITHIN, work)
        except TimeoutError as error:
            raise HardwareError(
                f"is not done after {ANSWER_WITHIN:g} s and goes on: hardware, disk or another "
                "instance of the plugin does not answer",
                obj=ref.label,
                hint="the kubelet will ask again; look at the card if this stays",
            ) from error

    async def _watched(
        self, name: str, ref: ClaimRef, work: Callable[[], Coroutine[Any, Any, str]]
    ) -> str:
        """Runs one claim's work; the error text, or nothing."""
        began, account = self._monotonic(), Account(self._monotonic)
        self._report.began(name)
        outcome = FAILED
        message = ""
        with bound(claim=f"{ref.namespace}/{ref.name}", claim_uid=ref.uid), opened(account):
            try:
                outcome = await self._in_time(ref, work())
            except GpudraError as error:
                outcome = REFUSED if isinstance(error, ClaimError | InputError) else FAILED
                message = f"{describe(error)} (op {current_op_id()})"
                log.warning(_FAILURES[name], error=str(error))
            except Exception as error:
                message = f"{describe(error)} (op {current_op_id()})"
                log.exception(_FAILURES[name])
            finally:
                self._report.ended(name, outcome, self._monotonic() - began, account)
            if message:
                self._report.claim_failed(ref, name, message)
        return message


def _distinct(claims: Iterable[pb.Claim]) -> list[ClaimRef]:
    """The claims of a call, each once."""
    found = {claim.uid: ClaimRef(claim.uid, claim.namespace, claim.name) for claim in claims}
    return list(found.values())


def _device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )
