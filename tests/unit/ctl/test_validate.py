# SPDX-License-Identifier: Apache-2.0
"""``gpudra validate``: every mistake by file, line and field, and nothing else."""

import json
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.yamlfile import parse_documents
from gpudra.controller.ctl.main import main
from gpudra.controller.ctl.validate import Findings, Rules, check

UUID = "GPU-0f01d861-80c1-5881-8bfc-0ebb3e92ac5e"
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a}
spec:
  devices:
    requests:
    - name: share
      exactly:
        deviceClassName: share.gpudra.io
        capacity:
          requests: {MEMORY}
    config:
    - requests: [share]
      opaque:
        driver: gpu.gpudra.io
        parameters:
          apiVersion: gpudra.io/v1alpha1
          kind: ShareConfig
          sharing: SHARING
"""


def validate(folder: Path, text: str, *words: str) -> int:
    """The exit code for a file with this text."""
    file = folder / "objects.yaml"
    file.write_text(textwrap.dedent(text))
    return main(["validate", "-f", str(file), *words])


def claim(memory: str = "memory: 10Gi", sharing: str = "{isolation: hami-core}") -> str:
    """A claim for a share."""
    return CLAIM.replace("MEMORY", memory).replace("SHARING", sharing)


def test_what_is_right_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Objects without rules here are passed over; lists are opened."""
    pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
    listed = (
        "---\nkind: List\napiVersion: v1\nitems:\n"
        "- {apiVersion: gpudra.io/v1alpha1, kind: GpuConfig}\n"
    )
    assert validate(tmp_path, claim() + pod + listed) == 0
    assert capsys.readouterr().out == "2 objects are valid\n"


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ("memory: 0", "0 of memory is no share, ask for 1Mi or more"),
        ("memory: 10GB", "'10GB' is not an amount"),
        ("memory: 10G", "10G is no whole number of MiB"),
        ("memory: -1Gi", "is no share"),
        ("memory: [1]", "is not an amount"),
        ("compute: 101", "101 is not in whole per cent"),
        ("compute: 500m", "'500m' is not in whole per cent"),
        ("gpu.gpudra.io/compute: -1", "is not in whole per cent"),
    ],
)
def test_amounts_of_shares_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: str, told: str
) -> None:
    """With the line and the field of the amount."""
    assert validate(tmp_path, claim(memory)) == 1
    name = memory.partition(":")[0]
    error = capsys.readouterr().err
    assert f"objects.yaml:12: spec.devices.requests[0].exactly.capacity.requests.{name}: " in error
    assert told in error


@pytest.mark.parametrize(
    ("sharing", "line", "field", "told"),
    [
        ("{isolation: magic}", 20, ".sharing.isolation", "Input should be 'mps'"),
        ("{isolation: null}", 20, ".sharing.isolation", "is null"),
        ("null", 20, ".sharing", "is null"),
        ("{colour: red}", 20, ".sharing.colour", "is not a known field"),
        ("{isolation: mps, timeSlice: long}", 20, ".sharing.timeSlice", "only with isolation"),
    ],
)
def test_configuration_inside_a_claim_is_checked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sharing: str,
    line: int,
    field: str,
    told: str,
) -> None:
    """The field is named from the top of the object."""
    assert validate(tmp_path, claim(sharing=sharing)) == 1
    error = capsys.readouterr().err
    assert f"objects.yaml:{line}: spec.devices.config[0].opaque.parameters{field}: " in error
    assert told in error


def test_a_template_a_class_and_alternatives_are_looked_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every place where configuration or amounts may stand; all problems at once."""
    text = """\
    kind: ResourceClaimTemplate
    spec:
      spec:
        devices:
          requests:
          - name: any
            firstAvailable:
            - {name: a, deviceClassName: share.gpudra.io, capacity: {requests: {memory: 0}}}
            - {name: b, deviceClassName: gpu.gpudra.io}
          config:
          - requests: [any/b, other]
            opaque: {driver: gpu.gpudra.io, parameters: {}}
    ---
    kind: DeviceClass
    spec:
      config:
      - opaque: {driver: other.example.com, parameters: null}
      - opaque: {driver: gpu.gpudra.io, parameters: null}
    """
    assert validate(tmp_path, text) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ", 2)[1] for line in lines] == [
        "spec.spec.devices.requests[0].firstAvailable[0].capacity.requests.memory",
        "spec.spec.devices.config[0].requests[1]",
        "spec.spec.devices.config[0].opaque.parameters.apiVersion",
        "spec.config[1].opaque.parameters",
    ]


def test_what_nodes_do_not_allow_or_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Backends by --allow, uuids by --hardware."""
    assert validate(tmp_path, claim(), "--allow", "mps") == 1
    assert "isolation hami-core is not allowed; use some of mps" in capsys.readouterr().err
    text = f"""\
    apiVersion: gpudra.io/v1alpha1
    kind: GpuConfig
    sharing:
      isolation: mps
      mps:
        pinnedMemoryLimits:
          {UUID}: 1Gi
    """
    assert validate(tmp_path, text) == 0
    assert validate(tmp_path, text, "--hardware", "dgx-h100-8x80", "--node", "x") == 1
    assert f"sharing.mps.pinnedMemoryLimits.{UUID}: there is no such GPU" in capsys.readouterr().err
    assert validate(tmp_path, claim(), "--allow", "magic") == 1
    assert "'magic' is no isolation" in capsys.readouterr().err


def test_other_kinds_of_ours_are_checked_by_their_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NodePolicy and Hardware."""
    text = """\
    apiVersion: gpudra.io/v1alpha1
    kind: NodePolicy
    metadata: {name: a}
    spec: {isolation: magic}
    ---
    apiVersion: gpudra.io/v1alpha1
    kind: Hardware
    metadata: {name: a}
    spec: {}
    """
    assert validate(tmp_path, text) == 1
    error = capsys.readouterr().err
    assert "spec.isolation" in error
    assert len(error.splitlines()) == 2


@pytest.mark.parametrize("text", ["a: [", "kind: [1]\n", "spec: 1\nkind: ResourceClaim\n", "- 1\n"])
def test_any_text_is_an_answer_never_a_crash(tmp_path: Path, text: str) -> None:
    """What is no object, or one of another shape, has nothing to check or one error."""
    assert validate(tmp_path, text) in (0, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["spec", "devices", "requests", "config", "opaque", "exactly", "capacity", "items"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(kind=st.sampled_from(["ResourceClaim", "DeviceClass", "GpuConfig", "List"]), rest=JSON)
def test_no_shape_of_an_object_ends_the_check(kind: str, rest: object) -> None:
    """Fields may hold anything; every problem is an InputError."""
    data = {"kind": kind, **(rest if isinstance(rest, dict) else {"spec": rest})}
    (document,) = parse_documents(json.dumps(data), "file")
    check(document, Rules(driver="gpu.gpudra.io"), Findings())
