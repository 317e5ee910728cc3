# SPDX-License-Identifier: Apache-2.0
"""``gpudra gather``: what support needs to know, in one file.

Layout (version 1 of ``manifest.json``'s ``layout``), everything below ``gpudra-gather/``:

    manifest.json            layout, time, versions, list of files, and what could not be had
    cluster/<plural>.json    objects as one List each
    local/readings.json      what the device library of this machine says
    local/topology.txt       the matrix of `gpudra devices --topology`
    local/state/…            checkpoint, stored health, NodePolicy in force of the agent
    local/cdi/…              CDI files of claims

Nothing secret goes in: see gpudra.controller.ctl.redact. One part that cannot be had never costs
another; it is named in ``problems``.
"""

import argparse
import dataclasses
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpudra.api.errors import ApiError, GpudraError, InputError
from gpudra.controller.ctl import cluster, redact

LAYOUT = 1
TOP = "gpudra-gather"
_MAX_FILE = 4 * 1024 * 1024
_STATE_FILES = ("checkpoint.*.json", "health.json", "faults.yaml", "mig.json")

Obj = dict[str, Any]


class Report:
    """Files in the making, and what went wrong."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []

    def add_data(self, path: str, data: object) -> None:
        """One JSON file."""
        self.files[path] = json.dumps(data, indent=1, ensure_ascii=False, default=str).encode()

    def attempt(self, what: str, make: Callable[[], None]) -> None:
        """Does one part; its failure is noted and costs only it."""
        try:
            make()
        except (GpudraError, OSError, ValueError) as error:
            self.problems.append(f"{what}: {error}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    cluster.add_cluster_arguments(parser)
    parser.add_argument("--driver", default=cluster.DEFAULT_DRIVER, help="name of the DRA driver")
    parser.add_argument("--node", action="append", help="only these nodes; may be repeated")
    parser.add_argument(
        "--file", type=Path, help="where to write (default: gpudra-gather-<time>.tar.gz here)"
    )
    parser.add_argument("--no-cluster", action="store_true", help="leave the cluster out")
    parser.add_argument(
        "--local",
        action="store_true",
        help="also this machine's cards, and the agent's state below --state-dir and --cdi-dir",
    )
    parser.add_argument(
        "--device-lib", choices=("nvml", "amd"), default="nvml", help="how to read the cards"
    )
    parser.add_argument("--state-dir", type=Path, help="the agent's folder of checkpoints")
    parser.add_argument(
        "--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="folder of CDI files"
    )


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    now = datetime.now(UTC)
    report = Report()
    versions: Obj = {"gpudra": _version()}
    if not args.no_cluster:
        report.attempt("cluster", lambda: versions.update(_gather_cluster(args, report)))
    if args.local:
        gather_local(args, report)
    if not report.files and report.problems:
        raise GpudraError(
            f"nothing could be gathered: {'; '.join(report.problems)}",
            hint="--kubeconfig names a cluster, --local packs what this machine knows",
        )
    path = args.file or Path(f"gpudra-gather-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    content = pack(report, versions=versions, now=now)
    try:
        with path.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", file=str(path), hint="give another --file"
        ) from error
    for problem in report.problems:
        print(f"left out: {problem}")
    print(f"{path}: {len(report.files)} files, {len(content) // 1024 + 1} KiB")
    return 0


def pack(report: Report, *, versions: Mapping[str, object], now: datetime) -> bytes:
    """The archive. Same parts, same bytes."""
    manifest = {
        "layout": LAYOUT,
        "createdAt": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "versions": dict(versions),
        "files": sorted(report.files),
        "problems": report.problems,
    }
    files = {"manifest.json": json.dumps(manifest, indent=1).encode(), **report.files}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, content in sorted(files.items()):
            info = tarfile.TarInfo(f"{TOP}/{path}")
            info.size, info.mtime, info.mode = len(content), int(now.timestamp()), 0o600
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _version() -> str:
    from importlib.metadata import version

    return version("gpudra")


# --- cluster -------------------------------------------------------------------------------------


def _gather_cluster(args: argparse.Namespace, report: Report) -> Obj:
    async def question(client: Any) -> Obj:
        return await gather_cluster(client, report, driver=args.driver, nodes=args.node)

    return cluster.ask(args, question)


async def gather_cluster(
    client: Any, report: Report, *, driver: str, nodes: list[str] | None = None
) -> Obj:
    """Objects of the cluster into the report; versions of the server.

    Args:
        client: of the API.
        report: takes the files.
        driver: whose slices and claims.
        nodes: only these; None: all that publish devices of the driver.

    Raises:
        ApiError: the server does not answer at all.
    """
    from gpudra.driver.kube import resources

    server = await client.version()
    slices = [
        one
        for one in await cluster.list_slices(client, driver)
        if nodes is None or one["spec"].get("nodeName") in nodes
    ]
    names = set(nodes or ()) | {str(one["spec"].get("nodeName", "")) for one in slices}
    wanted: dict[Any, Callable[[Obj], bool]] = {
        resources.NODES: lambda one: one["metadata"]["name"] in names,
        resources.RESOURCE_CLAIMS: lambda one: _is_on(one, driver, nodes),
        resources.DEVICE_CLASSES: lambda _: True,
        resources.DEVICE_TAINT_RULES: lambda _: True,
        resources.NODE_POLICIES: lambda _: True,
        resources.PODS: redact.is_ours,
        resources.EVENTS: lambda one: redact.is_event_of(one, driver),
    }
    _add_list(report, "resourceslices", slices)
    for resource, keep in wanted.items():
        try:
            found = (await client.list(resource)).items
        except ApiError as error:
            report.problems.append(f"{resource.plural}: {error}")
            continue
        _add_list(report, resource.plural, [one for one in found if keep(one)])
    return {"kubernetes": str(server.get("gitVersion", ""))}


def _add_list(report: Report, plural: str, items: list[Obj]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [redact.redacted(one) for one in items]}
    report.add_data(f"cluster/{plural}.json", listed)


def _is_on(claim: Obj, driver: str, nodes: list[str] | None) -> bool:
    """Whether a claim holds devices of the driver (on these nodes), or still waits."""
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        return nodes is None
    results = (allocation.get("devices") or {}).get("results") or ()
    return any(
        one.get("driver") == driver and (nodes is None or one.get("pool") in nodes)
        for one in results
    )


# --- this machine --------------------------------------------------------------------------------


def gather_local(args: argparse.Namespace, report: Report) -> None:
    """This machine's cards and the agent's files into the report."""
    report.attempt("readings", lambda: _readings(args.device_lib, report))
    folder = args.state_dir or Path("/var/lib/kubelet/plugins") / args.driver
    report.attempt("state", lambda: _add_state(folder, report))
    report.attempt("cdi", lambda: _add_cdi(args.cdi_dir, args.driver, report))


def _readings(backend: str, report: Report) -> None:
    from gpudra.controller.ctl import topology
    from gpudra.driver.devicelib.open import Backend

    inventory = topology.read_local(Backend(backend))
    hidden = [
        dataclasses.replace(gpu, serial=redact.REDACTED if gpu.serial else None)
        for gpu in inventory.gpus
    ]
    report.add_data(
        "local/readings.json",
        {
            "gpus": [redact.plain(gpu) for gpu in hidden],
            "problems": [redact.plain(problem) for problem in inventory.problems],
        },
    )
    text = topology.inventory_matrix(inventory, topology.host_root())
    report.files["local/topology.txt"] = f"{text}\n".encode()


def _add_state(folder: Path, report: Report) -> None:
    if not folder.is_dir():
        raise InputError("is no folder", file=str(folder), hint="name the agent's --state-dir")
    for pattern in _STATE_FILES:
        for path in sorted(folder.glob(pattern)):
            report.files[f"local/state/{path.name}"] = redact.state_file(_content(path))


def _add_cdi(folder: Path, driver: str, report: Report) -> None:
    for path in sorted(folder.glob("*.json")):
        if driver in path.name:
            report.files[f"local/cdi/{path.name}"] = redact.cdi_file(_content(path))


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_FILE)
