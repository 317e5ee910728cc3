# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out: the writes themselves, and what their answers tell."""

from collections.abc import Awaitable
from contextlib import suppress

from gpudra.api.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    InputError,
    NotFoundError,
)
from gpudra.api.resource_v1 import ResourceSlice
from gpudra.controller.resourceslices.reports import NameTakenError, Reporter, ReportKind
from gpudra.controller.resourceslices.view import SliceView
from gpudra.driver.core.slicediff import SlicePlan, dropped_fields, set_fields
from gpudra.driver.kube.resources import RESOURCE_SLICES, Obj
from gpudra.driver.kube.verbs import KubeApi
from gpudra.driver.observability.metrics import SLICE_WRITES, Metrics


class SliceWriter:
    """Writes slices of one pool and learns what the server does not keep.

    Attributes:
        dropped: paths of fields that the server dropped at the last write that held them.
    """

    def __init__(
        self, client: KubeApi, view: SliceView, reporter: Reporter, metrics: Metrics | None
    ) -> None:
        self._client = client
        self._view = view
        self._reporter = reporter
        self._metrics = metrics
        self.dropped: frozenset[str] = frozenset()

    async def carry_out(self, plan: SlicePlan) -> None:
        """All writes of a plan, in its order; stops at the first that fails.

        Raises:
            ApiError: of the write that failed. What was written before stays, and is safe: readers
                wait for a pool that is not complete.
        """
        for one in plan.updates:
            await self._update(one)
        for one in plan.creates:
            await self._create(one)
        for one in plan.deletes:
            await self.delete(one)

    async def delete(self, one: ResourceSlice) -> None:
        """Deletes exactly this slice; nothing happens if it is gone or another has its name."""
        metadata = one.metadata
        # NotFound, or another uid: in both cases the one that was meant is gone.
        with suppress(NotFoundError, ConflictError):
            await self._counted(
                "delete", self._client.delete(RESOURCE_SLICES, metadata.name, uid=metadata.uid)
            )
        self._view.gone(metadata.name, metadata.uid)

    async def _update(self, one: ResourceSlice) -> None:
        metadata = one.metadata
        try:
            raw = await self._counted("update", self._client.update(RESOURCE_SLICES, one.to_dict()))
        except NotFoundError as error:
            self._view.gone(metadata.name, metadata.uid)
            raise ConflictError(
                "was deleted meanwhile",
                status=error.status,
                reason=error.reason,
                obj=f"ResourceSlice {metadata.name}",
                hint="it is created again",
            ) from error
        except ConflictError:
            await self._look_up(metadata.name)
            raise
        self._learn(one, raw)

    async def _create(self, one: ResourceSlice) -> None:
        try:
            raw = await self._counted("create", self._client.create(RESOURCE_SLICES, one.to_dict()))
        except AlreadyExistsError as error:
            found = await self._look_up(one.metadata.name)
            if found is not None and not _same_pool(found, one):
                raise NameTakenError(
                    f"the name belongs to pool {found.spec.pool.name!r} of {found.spec.driver}",
                    status=error.status,
                    reason=error.reason,
                    obj=f"ResourceSlice {one.metadata.name}",
                    hint="delete that slice if nobody owns it",
                ) from error
            raise
        self._learn(one, raw)

    async def _look_up(self, name: str) -> ResourceSlice | None:
        """The present object, so that the next plan is made from it."""
        try:
            found = _decoded(await self._client.get(RESOURCE_SLICES, name))
        except NotFoundError:
            return None
        if found is not None:
            self._view.wrote(found)
        return found

    def _learn(self, sent: ResourceSlice, raw: Obj) -> None:
        kept = _decoded(raw)
        if kept is None:
            return
        self._view.wrote(kept)
        gone = dropped_fields(sent, kept)
        for path in sorted(gone - self.dropped):
            self._reporter.report(
                ReportKind.FIELDS_DROPPED,
                f"the API server does not keep {path}: a feature gate of it is off",
            )
        self.dropped = (self.dropped - set_fields(kept)) | gone

    async def _counted(self, verb: str, call: Awaitable[Obj]) -> Obj:
        try:
            answer = await call
        except ApiError:
            self._count(verb, "error")
            raise
        self._count(verb, "ok")
        return answer

    def _count(self, verb: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.inc(SLICE_WRITES, verb=verb, outcome=outcome)


def _same_pool(one: ResourceSlice, other: ResourceSlice) -> bool:
    return (one.spec.driver, one.spec.pool.name, one.spec.node_name) == (
        other.spec.driver,
        other.spec.pool.name,
        other.spec.node_name,
    )


def _decoded(raw: Obj) -> ResourceSlice | None:
    """None for an answer in a form of a later API that we cannot read; the write still counts."""
    try:
        return ResourceSlice.from_dict(raw)
    except InputError:
        return None
