# SPDX-License-Identifier: Apache-2.0
"""The real Prometheus and promtool, built from ``deploy/local/tools/prometheus`` like helm.

Built without service discovery (tag ``remove_all_sd``), which is most of what they are made of.
"""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.controller.ctl.local.build import Builder, Tool
from gpudra.controller.ctl.local.layout import checkout_dir, layout_for
from gpudra.controller.ctl.local.progress import Progress

PROMETHEUS = Tool(
    name="prometheus",
    module="github.com/prometheus/prometheus",
    programs={
        name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")
    },
    version_variables=("github.com/prometheus/common/version.Version={version}",),
    tags=("remove_all_sd",),
    minutes=3,
)
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def binaries() -> Path:
    """Folder of ``prometheus`` and ``promtool``, built unless they are there already."""
    bin_dir = layout_for(None).bin_dir
    Builder(checkout_dir() / "deploy" / "local" / "tools", bin_dir).build(PROMETHEUS, Progress(1))
    return bin_dir


def promtool(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """promtool; the caller looks at the exit code."""
    return subprocess.run(
        [binaries() / "promtool", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def fetched(url: str) -> str:
    """The text at an address of this machine."""
    with _OPENER.open(url, timeout=30) as response:
        return str(response.read().decode())


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def get(self, path: str, **query: str) -> Any:
        """``data`` of an answer of the HTTP API.

        Raises:
            AssertionError: the server says that the question is wrong.
        """
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with _OPENER.open(address, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{query or path}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        return list(self.get("/api/v1/query", query=expression)["result"])

    def until(self, condition: Callable[[], Any], what: str, timeout: float = 60) -> None:
        """Asks again until it holds; scrapes come every second."""
        deadline = time.monotonic() + timeout
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; log:\n{self.log.read_text()[-2000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.2)


@contextlib.contextmanager
def running(
    folder: Path, targets: Mapping[str, Sequence[str]], rules: Path
) -> Iterator[Prometheus]:
    """A server that scrapes these addresses, by job, every second.

    Args:
        folder: for its files.
        targets: addresses by name of the job.
        rules: file of alert rules.
    """
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in targets.items()
        ],
    }
    file, log, port = folder / "prometheus.yml", folder / "prometheus.log", _free_port()
    file.write_text(yaml.safe_dump(config))
    command = [
        *(str(binaries() / "prometheus"), f"--config.file={file}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        server = Prometheus(f"http://127.0.0.1:{port}", process, log)
        try:
            server.until(lambda: _is_ready(server.url), "Prometheus to be ready")
            yield server
        finally:
            process.terminate()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        with _OPENER.open(f"{url}/-/ready", timeout=10) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
