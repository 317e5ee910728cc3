# SPDX-License-Identifier: Apache-2.0
"""Which kinds the fake server knows, and how each behaves on write.

A kind that is not listed here (a CRD) is registered at run time by the test or simulation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudra.api.errors import NotFoundError
from gpudra.driver.kube import resources as known
from gpudra.driver.kube.fakeserver import defaults, validation
from gpudra.driver.kube.fakeserver.defaults import Defaulter
from gpudra.driver.kube.fakeserver.validation import Validator
from gpudra.driver.kube.resources import Obj, Resource


@dataclass(slots=True)
class Kind:
    """A resource and its behaviour.

    Attributes:
        resource: names and scope.
        status: whether it has a status subresource, so that a write to one leaves the other alone.
        selectable: fields for field selectors, beside name and namespace.
        default: fills in fields on write.
        validate: refuses objects.
        dropped: field paths that are dropped on write, as parsed segments.
        short_names: for discovery.
        generation: whether the server counts ``metadata.generation`` (seen on 1.37: not for claims).
        status_labels: whether a status write may change labels and annotations (pods, nodes).
    """

    resource: Resource
    status: bool = True
    selectable: frozenset[str] = frozenset()
    default: Defaulter | None = None
    validate: Validator | None = None
    dropped: list[tuple[str, ...]] = field(default_factory=list)
    short_names: tuple[str, ...] = ()
    generation: bool = True
    status_labels: bool = False


class KindTable:
    """Everything that the server serves."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds: dict[tuple[str, str], Kind] = {}
        for kind in kinds:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve a kind; it replaces one of the same group and plural."""
        self._kinds[kind.resource.group, kind.resource.plural] = kind

    def remove(self, resource: Resource) -> None:
        """Do not serve it any more."""
        self._kinds.pop((resource.group, resource.plural), None)

    def all(self) -> list[Kind]:
        """Everything, ordered by group and plural."""
        return [self._kinds[key] for key in sorted(self._kinds)]

    def get(self, resource: Resource) -> Kind:
        """How a kind is served. Raises NotFoundError when it is not."""
        return self.find(resource.group, resource.version, resource.plural)

    def find(self, group: str, version: str, plural: str) -> Kind:
        """How a kind is served, by the parts of a URL. Raises NotFoundError when it is not."""
        found = self._kinds.get((group, plural))
        if found is None or found.resource.version != version:
            raise NotFoundError(
                "the server could not find the requested resource",
                status=404,
                reason="NotFound",
                obj=plural,
            )
        return found

    def of_object(self, obj: Obj) -> Resource:
        """The resource of an object, by its kind and apiVersion. Raises NotFoundError."""
        wanted = (obj.get("apiVersion"), obj.get("kind"))
        for kind in self.all():
            if (kind.resource.api_version, kind.resource.kind) == wanted:
                return kind.resource
        raise NotFoundError(f"no resource for {wanted[0]} {wanted[1]}", status=404)


def builtin_kinds() -> list[Kind]:
    """Fresh descriptions of everything that is known from the start."""
    return [*_dra_kinds(), *_core_kinds(), *_plain_kinds()]


def _dra_kinds() -> Iterable[Kind]:
    # spec.pool.name became selectable in 1.37.
    yield Kind(
        known.RESOURCE_SLICES,
        status=False,
        selectable=frozenset({"spec.nodeName", "spec.driver", "spec.pool.name"}),
        default=defaults.default_slice,
        validate=validation.validate_slice,
    )
    yield Kind(
        known.RESOURCE_CLAIMS,
        default=defaults.default_claim,
        validate=validation.validate_claim,
        generation=False,
    )
    yield Kind(
        known.RESOURCE_CLAIM_TEMPLATES,
        status=False,
        default=defaults.default_claim_template,
        validate=validation.validate_template,
        generation=False,
    )
    yield Kind(known.DEVICE_CLASSES, status=False)
    yield Kind(known.DEVICE_TAINT_RULES, default=defaults.default_taint_rule)


def _core_kinds() -> Iterable[Kind]:
    yield Kind(
        known.PODS,
        selectable=frozenset({"spec.nodeName", "status.phase", "spec.schedulerName"}),
        default=defaults.default_pod,
        short_names=("po",),
        status_labels=True,
    )
    yield Kind(
        known.NODES,
        selectable=frozenset({"spec.unschedulable"}),
        short_names=("no",),
        generation=False,
        status_labels=True,
    )
    yield Kind(
        known.NAMESPACES,
        selectable=frozenset({"status.phase"}),
        short_names=("ns",),
        generation=False,
    )
    yield Kind(
        known.EVENTS,
        status=False,
        selectable=frozenset({"reason", "type", "regarding.name", "regarding.uid"}),
        short_names=("ev",),
        generation=False,
    )
    yield Kind(known.LEASES, status=False, generation=False)
    yield Kind(known.JOBS, selectable=frozenset({"status.successful"}))
    yield Kind(known.POD_DISRUPTION_BUDGETS, short_names=("pdb",))
    yield Kind(known.CRDS, short_names=("crd",))


def _plain_kinds() -> Iterable[Kind]:
    plain = frozenset({"serviceaccounts", "configmaps", "secrets", "services"})
    for group, version, plural, kind, namespaced, status in (
        ("", "v1", "serviceaccounts", "ServiceAccount", True, False),
        ("", "v1", "configmaps", "ConfigMap", True, False),
        ("", "v1", "secrets", "Secret", True, False),
        ("", "v1", "services", "Service", True, True),
        ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, False),
        ("apps", "v1", "deployments", "Deployment", True, True),
        ("apps", "v1", "daemonsets", "DaemonSet", True, True),
    ):
        yield Kind(
            Resource(group, version, plural, kind, namespaced),
            status=status,
            generation=plural not in plain,
        )
