# SPDX-License-Identifier: Apache-2.0
"""What a metric is: the shape of a row of the table in gpudra.driver.observability.metrics."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Component(StrEnum):
    """The process that a metric belongs to."""

    AGENT = "agent"
    CONTROLLER = "controller"


class Kind(StrEnum):
    """The Prometheus type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: as scraped.
        kind: Prometheus type.
        help: what it counts, in one sentence; label values in brackets.
        components: the processes that serve it.
        labels: label names, in order.
        buckets: upper bounds in seconds; histograms only.
        per_claim: a gauge with claims and devices as labels; whoever writes it takes it away.
    """

    name: str
    kind: Kind
    help: str
    components: frozenset[Component] = field(default=frozenset(Component))
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    per_claim: bool = False


class ApiRequest(Protocol):
    """A request to the API server that ended, as the client tells it."""

    @property
    def verb(self) -> str:
        """As in RBAC."""

    @property
    def resource(self) -> str:
        """Plural; empty for what is no resource."""

    @property
    def code(self) -> str:
        """``2xx``, the HTTP status of a failure, or ``0`` without an answer."""

    @property
    def seconds(self) -> float:
        """Until the answer was complete."""


def collector(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    """The series of a metric, registered."""
    if metric.kind is Kind.COUNTER:
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind is Kind.GAUGE:
        return Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return Histogram(
        metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry
    )
