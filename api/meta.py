# SPDX-License-Identifier: Apache-2.0
"""Object metadata and the small shapes that several APIs share (``meta/v1``, ``core/v1``)."""

from collections.abc import Mapping

from gpudra.api.codec import ApiObject, api_type, mapping_field


@api_type
class OwnerReference(ApiObject):
    """The object whose deletion takes this one along."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@api_type
class ObjectMeta(ApiObject):
    """What every object carries. ``extra`` keeps managedFields and the like."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    generation: int | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: Mapping[str, str] = mapping_field()
    annotations: Mapping[str, str] = mapping_field()
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


@api_type
class NodeSelectorRequirement(ApiObject):
    """One condition on a label or field (``core/v1``). Operators: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@api_type
class NodeSelectorTerm(ApiObject):
    """All of its requirements must hold; a term without any matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


@api_type
class NodeSelector(ApiObject):
    """One of its terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()
