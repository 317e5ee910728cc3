# SPDX-License-Identifier: Apache-2.0
"""All metrics in one table, and the registry that serves them.

Names, labels and meanings stand here and nowhere else: documentation and tests are made from
`TABLE`. The composition roots create one `Metrics` each and hand it to whoever counts something;
nothing uses the global registry of prometheus-client. Units are seconds, bytes and per cent. Label
values are few and known: no claim, pod or device name is a label, except in the gauges of usage
(``per_claim``), of which a node has one set per prepared device, and which end with the claim.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from gpudra.driver.observability.metric import ApiRequest, Component, Kind, Metric, collector

__all__ = ["TABLE", "Component", "Kind", "Metric", "Metrics"]

_AGENT = frozenset({Component.AGENT})
_CONTROLLER = frozenset({Component.CONTROLLER})
_BOTH = frozenset(Component)

# A prepare of a whole GPU takes a few milliseconds, one that makes a MIG instance or starts a
# daemon takes seconds; the kubelet gives up after 45 s.
_CLAIM_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PER_CLAIM = ("namespace", "claim", "device", "form")
# From at once to a day in a queue.
_WAIT_BUCKETS = (0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


ALLOCATED_COMPUTE = Metric(
    "gpudra_allocated_compute_gpus",
    Kind.GAUGE,
    "Compute that claims have, in cards, by class, model and form (gpu, mig, share).",
    _CONTROLLER,
    labels=("class", "model", "form"),
)
ALLOCATED_DEVICES = Metric(
    "gpudra_allocated_devices",
    Kind.GAUGE,
    "Devices that claims have, by class, model and form (gpu, mig, share).",
    _CONTROLLER,
    labels=("class", "model", "form"),
)
ALLOCATED_MEMORY = Metric(
    "gpudra_allocated_memory_bytes",
    Kind.GAUGE,
    "GPU memory that claims have, by class, model and form (gpu, mig, share).",
    _CONTROLLER,
    labels=("class", "model", "form"),
)
ALLOCATION_SECONDS = Metric(
    "gpudra_claim_allocation_duration_seconds",
    Kind.HISTOGRAM,
    "Time from the creation of a claim until it had its devices; waiting for its pod is in it.",
    _CONTROLLER,
    buckets=_WAIT_BUCKETS,
)
GPU_MEMORY = Metric(
    "gpudra_gpu_memory_bytes",
    Kind.GAUGE,
    "GPU memory of the cluster by model and state (held, free, stranded, tainted); "
    "stranded is free and no published device can give it out.",
    _CONTROLLER,
    labels=("model", "state"),
)
GPUS = Metric(
    "gpudra_gpus",
    Kind.GAUGE,
    "Cards of the cluster by model and state (free, whole, partitioned, shared, tainted).",
    _CONTROLLER,
    labels=("model", "state"),
)
LARGEST_GPUS = Metric(
    "gpudra_largest_free_gpus",
    Kind.GAUGE,
    "Most whole cards of a model that one node could give out now.",
    _CONTROLLER,
    labels=("model",),
)
LARGEST_MEMORY = Metric(
    "gpudra_largest_free_memory_bytes",
    Kind.GAUGE,
    "Memory of the largest device that could be given out now, by model and form (gpu, mig, share).",
    _CONTROLLER,
    labels=("model", "form"),
)
PENDING_CLAIMS = Metric(
    "gpudra_pending_claims",
    Kind.GAUGE,
    "Claims without devices by reason (no_class, no_device, tainted, in_use, waiting).",
    _CONTROLLER,
    labels=("reason",),
)
PENDING_OLDEST = Metric(
    "gpudra_pending_claims_oldest_timestamp_seconds",
    Kind.GAUGE,
    "When the oldest claim without devices was made, by reason; no series where none waits.",
    _CONTROLLER,
    labels=("reason",),
)
POOLS = Metric(
    "gpudra_pools",
    Kind.GAUGE,
    "Pools of devices, one a node, by state (complete, incomplete); nothing is given out of the latter.",
    _CONTROLLER,
    labels=("state",),
)
ADMISSION_REVIEWS = Metric(
    "gpudra_admission_reviews_total",
    Kind.COUNTER,
    "Objects that the admission webhook looked at by kind and outcome (allowed, refused, error).",
    _CONTROLLER,
    labels=("kind", "outcome"),
)
API_SECONDS = Metric(
    "gpudra_api_request_duration_seconds",
    Kind.HISTOGRAM,
    "Time until the API server's answer was complete; watches are not counted.",
    labels=("verb",),
    buckets=_REQUEST_BUCKETS,
)
API_REQUESTS = Metric(
    "gpudra_api_requests_total",
    Kind.COUNTER,
    "Requests to the API server by code (2xx, the status of a failure, 0 without an answer).",
    labels=("verb", "resource", "code"),
)
BUILD_INFO = Metric(
    "gpudra_build_info", Kind.GAUGE, "Always 1; the version is the label.", labels=("version",)
)
CHECKPOINT_SECONDS = Metric(
    "gpudra_checkpoint_write_duration_seconds",
    Kind.HISTOGRAM,
    "Time to write the checkpoint durably, fsync included.",
    _AGENT,
    buckets=_CLAIM_BUCKETS,
)
CLAIM_COMPUTE = Metric(
    "gpudra_claim_compute_percent",
    Kind.GAUGE,
    "How busy the claim keeps its device, in per cent of the card; not there where the driver does "
    "not tell (MIG).",
    _AGENT,
    labels=_PER_CLAIM,
    per_claim=True,
)
CLAIM_MEMORY = Metric(
    "gpudra_claim_memory_bytes",
    Kind.GAUGE,
    "Memory of its device that the claim has: of the card, of the MIG profile, or what its share "
    "reserves.",
    _AGENT,
    labels=_PER_CLAIM,
    per_claim=True,
)
CLAIM_MEMORY_USED = Metric(
    "gpudra_claim_memory_used_bytes",
    Kind.GAUGE,
    "Memory that processes of the claim use on its device.",
    _AGENT,
    labels=_PER_CLAIM,
    per_claim=True,
)
PHASE_SECONDS = Metric(
    "gpudra_claim_phase_duration_seconds",
    Kind.HISTOGRAM,
    "Time that one claim's operation (prepare, unprepare) spent in a phase (lock, hardware, cdi, "
    "checkpoint, api).",
    _AGENT,
    labels=("operation", "phase"),
    buckets=_CLAIM_BUCKETS,
)
CLAIM_PROCESSES = Metric(
    "gpudra_claim_processes",
    Kind.GAUGE,
    "Processes of the claim on its device.",
    _AGENT,
    labels=_PER_CLAIM,
    per_claim=True,
)
IN_FLIGHT = Metric(
    "gpudra_claims_in_flight",
    Kind.GAUGE,
    "Claims that are being worked on now (prepare, unprepare).",
    _AGENT,
    labels=("operation",),
)
DEVICES = Metric(
    "gpudra_devices",
    Kind.GAUGE,
    "Devices of the node by kind (gpu, mig, share, monitor) and state (published, left_out).",
    _AGENT,
    labels=("kind", "state"),
)
DEVICE_CALL_SECONDS = Metric(
    "gpudra_device_call_duration_seconds",
    Kind.HISTOGRAM,
    "Time of calls into NVML by outcome (ok, error): one look, switch or instance at a time.",
    _AGENT,
    labels=("outcome",),
    buckets=_CLAIM_BUCKETS,
)
FABRIC_CONTRADICTIONS = Metric(
    "gpudra_fabric_contradictions",
    Kind.GAUGE,
    "NVLink domains whose nodes contradict each other, by reason.",
    _CONTROLLER,
    labels=("reason",),
)
GC_ACTIONS = Metric(
    "gpudra_gc_actions_total",
    Kind.COUNTER,
    "What the agent took back by itself: claims (half_made, orphan), files of no claim (cdi_file, "
    "metadata, temporary), what isolation left behind (isolation), sockets of ended agents (socket).",
    _AGENT,
    labels=("kind",),
)
UNHEALTHY_GPUS = Metric(
    "gpudra_gpus_unhealthy",
    Kind.GAUGE,
    "GPUs of the node that are not well, by cause (xid-79, lost, ecc, ...).",
    _AGENT,
    labels=("cause",),
)
BACKEND_USABLE = Metric(
    "gpudra_isolation_backend_usable",
    Kind.GAUGE,
    "1 while shares can have this isolation on the node (mps, hami-core, time-slice, none).",
    _AGENT,
    labels=("backend",),
)
ISOLATION_INCIDENTS = Metric(
    "gpudra_isolation_incidents_total",
    Kind.COUNTER,
    "Daemons of isolation backends that ended or hung, by outcome (restored, lost).",
    _AGENT,
    labels=("outcome",),
)
KUBELET_REGISTERED = Metric(
    "gpudra_kubelet_registered",
    Kind.GAUGE,
    "1 while the kubelet has accepted the plugin's registration.",
    _AGENT,
)
LEADER = Metric(
    "gpudra_leader", Kind.GAUGE, "1 while this instance holds the controller's lease.", _CONTROLLER
)
MANAGED_EVICTIONS = Metric(
    "gpudra_managed_evictions_total",
    Kind.COUNTER,
    "Managed mode: pods that were asked to go for others, by outcome (evicted, refused).",
    _CONTROLLER,
    labels=("outcome",),
)
MANAGED_PLACE_SECONDS = Metric(
    "gpudra_managed_placement_duration_seconds",
    Kind.HISTOGRAM,
    "Managed mode: time to write a job's claims and lift its gates.",
    _CONTROLLER,
    buckets=_CLAIM_BUCKETS,
)
MANAGED_PLACEMENTS = Metric(
    "gpudra_managed_placements_total",
    Kind.COUNTER,
    "Managed mode: jobs by outcome (placed, undone).",
    _CONTROLLER,
    labels=("outcome",),
)
MANAGED_PLAN_SECONDS = Metric(
    "gpudra_managed_plan_duration_seconds",
    Kind.HISTOGRAM,
    "Managed mode: time to make one plan.",
    _CONTROLLER,
    buckets=_CLAIM_BUCKETS,
)
MANAGED_WAITING = Metric(
    "gpudra_managed_waiting_pods", Kind.GAUGE, "Managed mode: pods that wait.", _CONTROLLER
)
PREPARE_SECONDS = Metric(
    "gpudra_prepare_duration_seconds",
    Kind.HISTOGRAM,
    "Time to prepare one claim by form of its devices (gpu, mig, share, monitor, mixed, none, "
    "unknown) and outcome (ok, again, refused, failed), measured in the agent.",
    _AGENT,
    labels=("form", "outcome"),
    buckets=_CLAIM_BUCKETS,
)
PREPARED_CLAIMS = Metric(
    "gpudra_prepared_claims", Kind.GAUGE, "Claims that are prepared now.", _AGENT
)
PREPARED_DEVICES = Metric(
    "gpudra_prepared_devices",
    Kind.GAUGE,
    "Devices that are prepared now by kind (gpu, mig, share, monitor).",
    _AGENT,
    labels=("kind",),
)
REFLECTOR_ERRORS = Metric(
    "gpudra_reflector_errors_total",
    Kind.COUNTER,
    "List or watch failures by resource and reason; each is tried again.",
    labels=("resource", "reason"),
)
REFLECTOR_OBJECTS = Metric(
    "gpudra_reflector_objects",
    Kind.GAUGE,
    "Objects held in memory by resource.",
    labels=("resource",),
)
SLICE_DROPPED_FIELDS = Metric(
    "gpudra_resourceslice_dropped_fields",
    Kind.GAUGE,
    "Fields that the API server did not keep in the published slices.",
)
SLICE_SYNCS = Metric(
    "gpudra_resourceslice_syncs_total",
    Kind.COUNTER,
    "Comparisons of a pool with the API by outcome (unchanged, changed, error).",
    labels=("outcome",),
)
SLICE_WRITES = Metric(
    "gpudra_resourceslice_writes_total",
    Kind.COUNTER,
    "Writes of ResourceSlices by verb (create, update, delete) and outcome (ok, error).",
    labels=("verb", "outcome"),
)
USAGE_ERRORS = Metric(
    "gpudra_usage_errors_total",
    Kind.COUNTER,
    "Readings of usage that failed, by what was asked (card, claim); each costs only itself.",
    _AGENT,
    labels=("source",),
)
UNPREPARE_SECONDS = Metric(
    "gpudra_unprepare_duration_seconds",
    Kind.HISTOGRAM,
    "Time to unprepare one claim by form of its devices (gpu, mig, share, monitor, mixed, none, "
    "unknown) and outcome (ok, again, refused, failed), measured in the agent.",
    _AGENT,
    labels=("form", "outcome"),
    buckets=_CLAIM_BUCKETS,
)

TABLE: tuple[Metric, ...] = (
    ADMISSION_REVIEWS,
    ALLOCATED_COMPUTE,
    ALLOCATED_DEVICES,
    ALLOCATED_MEMORY,
    API_SECONDS,
    API_REQUESTS,
    BUILD_INFO,
    CHECKPOINT_SECONDS,
    ALLOCATION_SECONDS,
    CLAIM_COMPUTE,
    CLAIM_MEMORY,
    CLAIM_MEMORY_USED,
    PHASE_SECONDS,
    CLAIM_PROCESSES,
    IN_FLIGHT,
    DEVICE_CALL_SECONDS,
    DEVICES,
    FABRIC_CONTRADICTIONS,
    GC_ACTIONS,
    GPU_MEMORY,
    GPUS,
    UNHEALTHY_GPUS,
    BACKEND_USABLE,
    ISOLATION_INCIDENTS,
    KUBELET_REGISTERED,
    LARGEST_GPUS,
    LARGEST_MEMORY,
    LEADER,
    MANAGED_EVICTIONS,
    MANAGED_PLACE_SECONDS,
    MANAGED_PLACEMENTS,
    MANAGED_PLAN_SECONDS,
    MANAGED_WAITING,
    PENDING_CLAIMS,
    PENDING_OLDEST,
    POOLS,
    PREPARE_SECONDS,
    PREPARED_CLAIMS,
    PREPARED_DEVICES,
    REFLECTOR_ERRORS,
    REFLECTOR_OBJECTS,
    SLICE_DROPPED_FIELDS,
    SLICE_SYNCS,
    SLICE_WRITES,
    UNPREPARE_SECONDS,
    USAGE_ERRORS,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one process.

    Args:
        component: only the rows of this process are served, so that a scrape never shows a
            number that nobody updates.
        version: value of the label of `BUILD_INFO`; no such series when empty.
        process: whether CPU, memory and file descriptors of the process are served too.
    """

    def __init__(self, component: Component, *, version: str = "", process: bool = True) -> None:
        # A second series per counter with its creation time: nobody asked for it.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library lacks the hint
        self._registry = CollectorRegistry(auto_describe=True)
        self._series = {
            metric.name: collector(metric, self._registry)
            for metric in TABLE
            if component in metric.components
        }
        if process:
            ProcessCollector(registry=self._registry)
        if version:
            self.set(BUILD_INFO, 1, version=version)

    def inc(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter or a gauge."""
        series = self._labelled(metric, labels)
        assert isinstance(series, Counter | Gauge), f"{metric.name} is a {metric.kind}"
        series.inc(amount)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        series = self._labelled(metric, labels)
        assert isinstance(series, Gauge), f"{metric.name} is a {metric.kind}"
        series.set(value)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation, in seconds, to a histogram."""
        series = self._labelled(metric, labels)
        assert isinstance(series, Histogram), f"{metric.name} is a {metric.kind}"
        series.observe(value)

    @contextmanager
    def track(self, metric: Metric, **labels: str) -> Iterator[None]:
        """A gauge is one higher while the block runs."""
        self.inc(metric, 1, **labels)
        try:
            yield
        finally:
            self.inc(metric, -1, **labels)

    def clear(self, metric: Metric) -> None:
        """Forget all label sets of a gauge, before it is written anew."""
        self._series[metric.name].clear()

    def api_request(self, request: ApiRequest) -> None:
        """Counts one request: what ``ClientOptions.on_request`` wants."""
        verb, resource, code = request.verb, request.resource, request.code
        self.inc(API_REQUESTS, verb=verb, resource=resource, code=code)
        self.observe(API_SECONDS, request.seconds, verb=verb)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE

    def _labelled(self, metric: Metric, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        try:
            series = self._series[metric.name]
        except KeyError:
            raise ValueError(f"{metric.name} does not belong to this process") from None
        return series.labels(**labels) if metric.labels else series
