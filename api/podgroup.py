# SPDX-License-Identifier: Apache-2.0
"""The kind ``PodGroup``: pods that start together or not at all, and how near to each other.

Pods join by the label ``gpudra.io/pod-group`` in their namespace. The CustomResourceDefinition in
deploy/charts/gpudra/crds holds the same rules, and a test compares the two.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from gpudra.api.objects import CrdModel, Metadata, Seconds, decode_known
from gpudra.api.queue import QueueName

KIND: Final = "PodGroup"
PLURAL: Final = "podgroups"
MAX_PODS = 10_000

Count = Annotated[int, Field(ge=1, le=MAX_PODS)]
RoleName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
TopologyKey = Annotated[
    str,
    Field(
        max_length=317,
        pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    ),
]
Keys = Annotated[tuple[TopologyKey, ...], Field(max_length=8)]


class Role(CrdModel):
    """Pods of one kind in the group, by the label ``gpudra.io/role``."""

    name: RoleName
    min_count: Count


class Topology(CrdModel):
    """Inside which domain the pods must, or should, be.

    A key is ``nvlinkDomain`` or ``pcieSwitch`` (of the devices), or the name of a node label.
    """

    required: Keys = ()
    preferred: Keys = ()


class PodGroupSpec(CrdModel):
    """What the group wants.

    Attributes:
        min_count: so many pods start together; more may follow one by one.
        roles: minima by role; together they may not be more than ``min_count``.
        queue: for all pods of the group; None: as the pods say.
        priority_class_name: for people and other tools; the pods' own priority decides.
        topology: required is obeyed, preferred is tried in the order given, tightest first.
        timeout: seconds after which a group that could not start is given up; None: it waits.
        disruption: ``all``: evicted as one; ``single``: down to the minimum one by one.
    """

    min_count: Count = 1
    roles: Annotated[tuple[Role, ...], Field(max_length=32)] = ()
    queue: QueueName | None = None
    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    topology: Topology = Topology()
    timeout: Seconds | None = None
    disruption: Literal["all", "single"] = "all"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [role.name for role in self.roles]
        if len(set(names)) < len(names):
            raise ValueError("roles: a role comes twice")
        if sum(role.min_count for role in self.roles) > self.min_count:
            raise ValueError("roles: their minima are together above minCount")
        return self


class PodGroup(CrdModel):
    """One group. ``status`` is written by managed mode and not looked at here."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["PodGroup"]
    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: Mapping[str, Any] = {}

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> Self:
        """A group as the API server has it: fields that are not known here are dropped.

        Raises:
            InputError: a value that is not understood; written perhaps for a newer version.
        """
        return decode_known(raw, cls)
