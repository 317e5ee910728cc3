# SPDX-License-Identifier: Apache-2.0
"""The verbs of the API as a protocol, and the shapes of their answers.

`KubeApi` is what controllers, the agent and the recorder take as a parameter; `KubeClient` and the
tests' fakes have its shape.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from gpudra.driver.kube.resources import Obj, Resource

PatchType = Literal["merge", "json", "apply", "strategic"]

# A class with a method called ``list`` cannot say ``list[...]`` in the signatures below it.
PatchBody: TypeAlias = Obj | list[Obj]
Objects: TypeAlias = list[Obj]


@dataclass(frozen=True, slots=True)
class ListResult:
    """A whole collection and the version of its first page, from which a watch may start."""

    items: list[Obj]
    resource_version: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page.

    Attributes:
        items: never None, even where the server sent null.
        resource_version: the collection's version.
        continue_token: empty on the last page.
        remaining: how many items are left, when the server says so.
    """

    items: list[Obj]
    resource_version: str
    continue_token: str
    remaining: int | None


class KubeApi(Protocol):
    """The verbs that most callers need: take this as a parameter, so that a fake fits too."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """See `KubeClient.get`."""

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
    ) -> ListResult:
        """See `KubeClient.list`."""

    async def create(
        self,
        resource: Resource,
        obj: Obj,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Obj:
        """See `KubeClient.create`."""

    async def update(
        self,
        resource: Resource,
        obj: Obj,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
        subresource: str | None = None,
    ) -> Obj:
        """See `KubeClient.update`."""

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: PatchBody,
        *,
        namespace: str | None = None,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        """See `KubeClient.patch`."""

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Obj:
        """See `KubeClient.delete`."""
