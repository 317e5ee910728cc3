# SPDX-License-Identifier: Apache-2.0
"""Account, process and manifest of the kubelet plugin; and nodes that are only objects."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    UnavailableError,
)
from gpudra.controller.ctl.local import agent as agent_module
from gpudra.controller.ctl.local.agent import (
    Agent,
    AgentError,
    manifests,
    newest_source,
    node_token,
    object_path,
)
from gpudra.controller.ctl.local.apiclient import _error
from gpudra.controller.ctl.local.fakenodes import ensure, fake_node
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.plan import new_node
from gpudra.controller.ctl.local.up import is_ready


class FakeClient:
    """Remembers requests, and answers with what was prepared for the path."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, str, Any]] = []

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One call."""
        self.requests.append((method, path, body))
        return self.answers.get(path, {})

    def create_all(self, path: str, bodies: Iterable[Any]) -> Iterator[None]:
        """Many creations."""
        for body in bodies:
            yield
            self.requests.append(("POST", path, body["metadata"]["name"]))


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """The plugin of node-1."""
    layout = Layout(tmp_path, tmp_path / "bin")
    Path(layout.node("node-1").agent_dir).mkdir(parents=True)
    return Agent(new_node(layout, 1, iter([1, 2, 3]).__next__), "a30-2x")


def test_the_plugin_is_pointed_to_its_node(agent: Agent, tmp_path: Path) -> None:
    """Every path of the node is given on the command line, in the words that were agreed on."""
    config = tmp_path / "kubeconfig"
    config.touch()

    argv = agent.component(config).argv

    assert [argument.partition("=")[0] for argument in argv[1:]] == [
        "--node-name",
        "--kubeconfig",
        "--kubelet-root",
        "--cdi-dir",
        "--runtime-dir",
        "--device-lib",
        "--hardware",
        "--http-endpoint",
    ]
    assert "--http-endpoint=127.0.0.1:3" in argv
    assert f"--kubelet-root={agent.node.kubelet_root}" in argv


def test_changed_sources_make_the_plugin_old(tmp_path: Path) -> None:
    """The newest Python or YAML file of the given folders counts, other files do not."""
    for name, seconds in (("a.py", 100), ("deep/b.yaml", 200), ("c.txt", 300)):
        file = tmp_path / "driver" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (seconds, seconds))

    assert newest_source(tmp_path, ["driver", "missing"]) == 200


def test_a_plugin_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error tells how to install it, and how to go without."""
    monkeypatch.setattr(agent_module, "script_path", lambda: tmp_path / "missing")

    with pytest.raises(AgentError, match=r"is not installed; .*--no-agent"):
        agent_module.check_script()


def test_a_plugin_that_does_not_run_shows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words are in the error."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho no module named grpc >&2; exit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(agent_module, "script_path", lambda: script)

    with pytest.raises(AgentError, match=r"(?s)does not run:.*no module named grpc"):
        agent_module.check_script()


def test_the_token_is_bound_to_the_node_as_it_is_now() -> None:
    """Name and uid, so that a token of a deleted node's namesake is worthless."""
    path = "/api/v1/namespaces/gpudra-system/serviceaccounts/gpudra-kubelet-plugin/token"
    client = FakeClient(
        {"/api/v1/nodes/node-1": {"metadata": {"uid": "u"}}, path: {"status": {"token": "t"}}}
    )

    token = node_token(client, "node-1", 60)  # type: ignore[arg-type]

    assert token == "t"
    spec = client.requests[-1][2]["spec"]
    assert spec["boundObjectRef"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-1",
        "uid": "u",
    }


def test_every_object_of_the_manifest_has_a_place_in_the_api() -> None:
    """A kind that is added to the manifest must be known to the command."""
    documents = manifests()

    paths = [object_path(document) for document in documents]

    assert paths[0] == "/api/v1/namespaces/gpudra-system"
    assert len(set(paths)) == len(documents)
    assert "/apis/resource.k8s.io/v1/deviceclasses/gpu.gpudra.io" in paths


def test_the_plugin_may_not_watch_claims() -> None:
    """Thousands of agents must not watch all claims; reading them on occasion is enough."""
    role = next(document for document in manifests() if document["kind"] == "ClusterRole")

    verbs = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}

    assert "watch" not in verbs["resourceclaims"]
    assert "update" not in verbs["nodes"]
    assert verbs["resourceclaims/driver"] == ["associated-node:update", "associated-node:patch"]


def test_fake_nodes_are_brought_to_the_wanted_number() -> None:
    """Missing ones are created, surplus ones deleted, the others left alone."""
    have = {"items": [{"metadata": {"name": name}} for name in ("fake-0001", "fake-0009")]}
    client = FakeClient({"/api/v1/nodes?labelSelector=gpudra.io/fake%3Dtrue": have})
    said: list[str] = []

    ensure(client, 3, said.append)  # type: ignore[arg-type]

    assert client.requests[1:] == [
        ("POST", "/api/v1/nodes", "fake-0002"),
        ("POST", "/api/v1/nodes", "fake-0003"),
        ("DELETE", "/api/v1/nodes/fake-0009", None),
    ]
    assert said[-1] == "2 of 2 created"


def test_a_fake_node_is_ready_and_has_room() -> None:
    """The scheduler needs a Ready condition and allocatable resources."""
    node = fake_node("fake-0001")

    assert is_ready(node)
    assert int(node["status"]["allocatable"]["pods"]) > 100


@pytest.mark.parametrize(
    ("node", "ready"),
    [
        ({}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True),
        (
            {
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                "spec": {"taints": [{"key": "node.kubernetes.io/not-ready"}]},
            },
            False,
        ),
    ],
)
def test_a_node_is_ready_once_pods_may_come(node: dict[str, object], ready: bool) -> None:
    """The condition alone is not enough: the taint goes a moment later."""
    assert is_ready(node) is ready


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, b'{"message": "exists", "reason": "AlreadyExists"}', AlreadyExistsError),
        (409, b'{"message": "changed", "reason": "Conflict"}', ConflictError),
        (403, b'{"message": "no"}', ForbiddenError),
        (422, b'{"message": "bad"}', InvalidError),
        (500, b"<html>", UnavailableError),
        (418, b"[]", ApiError),
    ],
)
def test_answers_become_errors_with_the_servers_words(
    status: int, body: bytes, kind: type[ApiError]
) -> None:
    """The class fits the status; a body that is no Status object is shown as it is."""
    error = _error(status, body, "GET /x")

    assert type(error) is kind
    assert f"GET /x was answered {status}" in str(error)
