# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the e2e tests: the local cluster, started when it is not running, and namespaces."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudra.controller.ctl.local.layout import layout_for
from gpudra.controller.ctl.local.process import ProcessTable
from tests.support.cluster import CORE, Cluster, gpudra_local
from tests.support.installation import Installation, demo_cluster

HERE = Path(__file__).parent
SERVER_VERSION = pytest.StashKey[str]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is an e2e test, and gets a second try (decision 0070)."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which server the tests ran against, and how many ran, for the log of CI."""
    version = config.stash.get(SERVER_VERSION, "none: no test used it")
    ran = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call" and report.nodeid.startswith("tests/e2e/")
    ]
    again = [report.nodeid for report in terminalreporter.getreports("rerun")]
    terminalreporter.write_line(
        f"e2e: API server {version}, {len(ran)} tests ran on the local cluster"
    )
    for name in again:
        terminalreporter.write_line(f"e2e: second try of {name}")


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The default local cluster with two real nodes and gpudra's plugin on each, as a process.

    Tests kill it, and a process starts in a second; what pods of the chart do, ``installed`` shows.
    One that runs already is brought up to date and left running; else it is stopped at the end.
    """
    layout = layout_for(None)
    was_running = ProcessTable(layout.pid_dir, layout.log_dir).running("kube-apiserver") is not None
    up = gpudra_local("up", "--nodes", "2", "--agent-as", "processes", "--yes")
    assert up.returncode == 0, up.stderr[-4000:]
    running = Cluster.of(layout)
    pytestconfig.stash[SERVER_VERSION] = running.client.request("GET", "/version")["gitVersion"]
    yield running
    if not was_running:
        down = gpudra_local("down")
        assert down.returncode == 0, down.stderr[-4000:]


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own, deleted with all in it afterwards."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.client.request(
        "POST",
        f"{CORE}/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
    )
    # Pods are refused until the namespace's account exists.
    cluster.wait_for(
        f"{CORE}/namespaces/{name}/serviceaccounts", "default", lambda _: True, what="to exist"
    )
    yield name
    cluster.delete_namespace(name)


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Iterator[Installation]:
    """A second cluster, on which the demo has installed the chart; for the modules test_chart_*.

    The last test of test_chart_installed removes the chart, so what needs it is named before that.
    """
    assert cluster, "its programs are used"
    with demo_cluster() as found:
        yield found
