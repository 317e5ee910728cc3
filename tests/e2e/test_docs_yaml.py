# SPDX-License-Identifier: Apache-2.0
"""Every object in the docs and examples, as a reader would apply it, is taken by the real API server."""

from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.local.layout import checkout_dir
from tests.support.cluster import CORE, Cluster
from tests.support.pages import ROOT, pages, yaml_blocks

EXAMPLES = checkout_dir() / "deploy" / "examples"
# Kinds of ours that are files, not objects of the API server.
FILES = {"Hardware", "DeviceInventory", "GpuConfig", "MigConfig", "ShareConfig"}
# What other systems bring; their requests are shown in the migration guides.
FOREIGN = {
    "batch.volcano.sh",
    "cert-manager.io",
    "jobset.x-k8s.io",
    "kueue.x-k8s.io",
    "monitoring.coreos.com",
    "scheduling.run.ai",
    "scheduling.volcano.sh",
}


def sources() -> dict[str, list[dict[str, Any]]]:
    """Objects for the API server, by page or example file."""
    found: dict[str, list[dict[str, Any]]] = {}
    for page in pages():
        objects = [one for block in yaml_blocks(page) for one in block.objects]
        found[str(page.relative_to(ROOT))] = objects
    for file in sorted(EXAMPLES.rglob("*.yaml")):
        found[str(file.relative_to(ROOT))] = [
            one for one in yaml.safe_load_all(file.read_text()) if one
        ]
    chosen = {name: [one for one in objects if is_served(one)] for name, objects in found.items()}
    return {name: objects for name, objects in chosen.items() if objects}


def is_served(one: dict[str, Any]) -> bool:
    """Whether the API server of the test should know it."""
    return one["kind"] not in FILES and one["apiVersion"].partition("/")[0] not in FOREIGN


SOURCES = sources()


def test_the_docs_have_objects() -> None:
    """The search finds what is there."""
    assert "docs/nodepolicy.md" in SOURCES


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_objects_apply(cluster: Cluster, source: str) -> None:
    """With ``--dry-run=server``: schema, CEL rules and validation, nothing is kept."""
    objects = SOURCES[source]
    wanted = {one["metadata"].get("namespace", "default") for one in objects if "metadata" in one}
    made = [name for name in sorted(wanted - {"default"}) if not exists(cluster, name)]
    own = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Namespace"}
    for name in made:
        plain = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        cluster.apply(own.get(name, plain))
        # Pods are refused until the namespace's account exists.
        cluster.wait_for(
            f"{CORE}/namespaces/{name}/serviceaccounts", "default", lambda _: True, what="to exist"
        )
    try:
        text = yaml.safe_dump_all(objects)
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    finally:
        for name in made:
            cluster.kubectl("delete", "namespace", name, "--wait=false")


def exists(cluster: Cluster, namespace: str) -> bool:
    """Whether the cluster has the namespace already."""
    return bool(cluster.kubectl("get", "namespace", namespace, "--ignore-not-found"))
