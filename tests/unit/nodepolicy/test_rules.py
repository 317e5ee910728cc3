# SPDX-License-Identifier: Apache-2.0
"""Which NodePolicy decides for a node, what it says, and what is refused."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.api.errors import InputError
from gpudra.api.nodepolicy import Form, NodePolicy, decode_stored
from gpudra.api.yamlfile import parse_documents
from gpudra.controller.ctl.main import main
from gpudra.driver.core.forms import EVERY_FORM, EVERYTHING, DeviceKind, DeviceOrder, MigMode
from gpudra.driver.core.nodepolicy import publish_policy, resolve, rivals, verdicts

CRD = Path(__file__).parents[3] / "deploy/charts/gpudra/crds/nodepolicies.yaml"
FULL = """\
apiVersion: gpudra.io/v1alpha1
kind: NodePolicy
metadata: {name: training}
spec:
  nodeSelector: {pool: training}
  managed: true
  forms: [whole, share]
  memoryOversubscription: 1.5
  isolation: mps
  excluded: [GPU-1]
  order: spread
  models:
    - names: ["NVIDIA A100*"]
      forms: [mig]
      mig: static
      memoryOversubscription: 1
    - names: ["*L4"]
  xids:
    - {codes: [13, 31], effect: None}
    - {codes: [79], effect: NoExecute}
"""


def policy(name: str, created: str = "", **spec: Any) -> NodePolicy:
    """A policy as the API has it."""
    return decode_stored(
        {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": "NodePolicy",
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": spec,
        }
    )


def test_everything_that_a_policy_says_is_heard() -> None:
    """Each field reaches the decision about devices; a model inherits what it does not say."""
    found = publish_policy(parse_documents(FULL, "p.yaml")[0].validate(NodePolicy))
    assert (found.managed, found.isolation, found.order) == (True, "mps", DeviceOrder.SPREAD)
    assert found.excluded == {"GPU-1"}
    assert found.forms.kinds == {DeviceKind.WHOLE, DeviceKind.SHARE}
    assert found.forms.memory_oversubscription == Decimal("1.5")
    first, second = found.models
    assert (first.forms.kinds, first.forms.mig) == ({DeviceKind.MIG}, MigMode.STATIC)
    assert first.forms.memory_oversubscription == 1
    assert second.forms == found.forms
    assert found.xid_effects == {13: "None", 31: "None", 79: "NoExecute"}


def test_an_empty_policy_says_what_no_policy_says() -> None:
    """Defaults are the same with and without."""
    assert publish_policy(policy("p")) == EVERYTHING
    assert resolve([], {}) == EVERYTHING
    assert EVERYTHING.forms.kinds == EVERY_FORM


def test_the_most_specific_policy_decides() -> None:
    """By the number of labels; one that asks for a label which the node lacks is out."""
    every = policy("every", order="spread")
    pool = policy("pool", nodeSelector={"pool": "a"}, managed=True)
    both = policy("both", nodeSelector={"pool": "a", "zone": "z"}, forms=["whole"])
    known = [every, pool, both]
    assert rivals(known, {}) == (every,)
    assert rivals(known, {"pool": "a"}) == (pool,)
    assert rivals(known, {"pool": "a", "zone": "z", "other": "x"}) == (both,)
    assert rivals(known, {"pool": "b", "zone": "z"}) == (every,)
    assert resolve([pool, both], {"pool": "b"}) == EVERYTHING


def test_of_equals_the_oldest_decides_whatever_the_order() -> None:
    """A new policy takes nothing over by accident; names decide between twins."""
    old = policy("z-old", "2026-01-01T00:00:00Z", nodeSelector={"a": "1"})
    new = policy("a-new", "2026-01-02T00:00:00Z", nodeSelector={"b": "1"})
    twin = policy("b-new", "2026-01-02T00:00:00Z", nodeSelector={"b": "1"})
    labels = {"a": "1", "b": "1"}
    assert rivals([new, twin, old], labels) == rivals([old, twin, new], labels) == (old, new, twin)


def test_a_conflict_is_told_to_both_with_the_nodes() -> None:
    """Who decides where, who disputes it, and what to do."""
    old = policy("old", "2026-01-01T00:00:00Z", nodeSelector={"a": "1"})
    new = policy("new", "2026-01-02T00:00:00Z", nodeSelector={"b": "1"})
    idle = policy("idle", nodeSelector={"c": "1"})
    nodes = {"n1": {"a": "1"}, "n2": {"a": "1", "b": "1"}, "n3": {"a": "1", "b": "1"}}
    found = {one.name: one for one in verdicts([new, idle, old], nodes)}
    assert (found["old"].nodes, found["old"].overruled) == (3, 0)
    assert (found["new"].nodes, found["new"].overruled) == (0, 2)
    assert found["new"].conflicts == (("old", 2, "n2"),)
    assert found["old"].conflicts == (("new", 2, "n2"),)
    assert "NodePolicy old on 2 nodes (n2, …)" in found["new"].message
    assert "more labels in nodeSelector" in found["new"].message
    assert (found["idle"].nodes, found["idle"].conflicts) == (0, ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("managd: true", "spec.managd: is not a field here"),
        ("forms: [gpu]", "spec.forms"),
        ("forms: [mig, mig]", "a form comes twice"),
        ("memoryOversubscription: -1", "spec.memoryOversubscription"),
        ("memoryOversubscription: 17", "spec.memoryOversubscription"),
        ('memoryOversubscription: "2"', "spec.memoryOversubscription"),
        ("order: best", "spec.order"),
        ("isolation: strong", "spec.isolation"),
        ("models: [{forms: [mig]}]", "spec.models[0].names: is required"),
        ("xids: [{codes: [13], effect: Never}]", "spec.xids[0].effect"),
        ("xids: [{codes: [13], effect: None}, {codes: [13], effect: None}]", "a code comes twice"),
        ("excluded: GPU-1", "spec.excluded"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_field(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``gpudra slices --policy`` says what is wrong and where."""
    file = tmp_path / "policy.yaml"
    head = "apiVersion: gpudra.io/v1alpha1\nkind: NodePolicy\nmetadata: {name: p}\nspec:\n  "
    file.write_text(f"{head}{line}\n")
    assert main(["slices", "--hardware", "l4-4x", "--policy", str(file)]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert f"{file}:{5 if 'twice' not in message else 4}:" in said


def test_oversubscription_without_shares_is_refused() -> None:
    """It would do nothing in silence."""
    with pytest.raises(InputError, match="is for shares, which forms leaves out"):
        policy("p", forms=["whole"], memoryOversubscription=1.5)
    policy("p", forms=["whole"], memoryOversubscription=1)


def test_what_a_newer_version_stored_is_read_without_its_new_fields() -> None:
    """At any depth; a value that is not understood is still an error that names the policy."""
    found = policy("p", later=1, models=[{"names": ["x"], "later": {"a": 1}}], order="spread")
    assert found.spec.models[0].names == ("x",)
    with pytest.raises(InputError, match=r"nodepolicy p: spec.order"):
        policy("p", order="later")


def test_a_policy_file_decides_what_slices_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its nodeSelector says; ``--forms`` narrows it."""
    file = tmp_path / "policy.yaml"
    file.write_text(FULL)
    command = ["slices", "--hardware", "l4-4x", "--policy", str(file)]

    def shown(*more: str) -> list[str]:
        assert main([*command, *more, "-o", "yaml"]) == 0
        items = yaml.safe_load(capsys.readouterr().out)["items"]
        devices = [device for one in items for device in one["spec"].get("devices", ())]
        assert all(device["taints"][0]["key"].endswith("/managed") for device in devices)
        return [device["attributes"]["type"]["string"] for device in devices]

    assert shown() == ["gpu", "share"] * 4
    assert shown("--forms", "whole,mig") == ["gpu"] * 4


def test_the_examples_of_the_page_are_policies() -> None:
    """Each block of docs/nodepolicy.md is accepted, and its table has every field."""
    page = (CRD.parents[4] / "docs/nodepolicy.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(blocks) == 2
    for block in blocks:
        publish_policy(parse_documents(block, "page")[0].validate(NodePolicy))
    for field in NodePolicy.model_json_schema()["$defs"]["NodePolicySpec"]["properties"]:
        assert f"| `{field}`" in page or f"| `{field}[]`" in page, field


def test_the_crd_has_the_fields_and_words_of_the_program() -> None:
    """Every field, no other, with the same words and limits."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    stored = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema = NodePolicy.model_json_schema()
    ours = schema["$defs"]["NodePolicySpec"]
    assert stored["properties"].keys() == ours["properties"].keys()
    rule = schema["$defs"]["ModelRule"]["properties"].keys()
    assert stored["properties"]["models"]["items"]["properties"].keys() == rule
    words = stored["properties"]["forms"]["items"]["enum"]
    assert words == [str(form) for form in Form]
    for name, limit in (("excluded", 64), ("models", 32), ("xids", 16)):
        assert (
            stored["properties"][name]["maxItems"] == limit == ours["properties"][name]["maxItems"]
        )
    over = stored["properties"]["memoryOversubscription"]
    assert (over["minimum"], over["maximum"]) == (1, 16)
    isolations = schema["$defs"]["Isolation"]["enum"]
    assert stored["properties"]["isolation"]["enum"] == isolations
