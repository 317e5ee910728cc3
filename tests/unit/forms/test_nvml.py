# SPDX-License-Identifier: Apache-2.0
"""Forms of a card as NVML tells it: the pretended library, with instances that are not ours."""

from pathlib import Path

import pytest

from gpudra.driver.core.cards import MigPlace
from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.core.resourceslices import ALL_FEATURES, DesiredPool, build_pool
from gpudra.driver.devicelib.nvml import NvmlLib
from tests.fakenvml.machine import FakeMachine
from tests.unit.forms.cards import causes, kinds

HARDWARE = """
apiVersion: gpudra.io/v1alpha1
kind: Hardware
metadata: {name: one-card}
spec:
  driver: {version: "580.126.20", cuda: "13.0"}
  gpus:
    - {board: h100-sxm5-80gb, pci: {busId: "0000:19:00.0", bridges: ["0000:15:01.0"]}}
"""


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlLib:
    """One H100 with its MIG mode off."""
    (tmp_path / "hardware.yaml").write_text(HARDWARE)
    machine = FakeMachine(str(tmp_path / "hardware.yaml"), tmp_path)
    monkeypatch.setenv("FAKENVML_STATE", str(machine.state))
    return NvmlLib(library=machine.library, host_root=machine.root)


def test_what_others_make_is_in_use_and_what_we_make_is_not(lib: NvmlLib) -> None:
    """The same instance, told apart by who holds its place; and the same pool before and after."""

    def pool(*own: MigPlace) -> DesiredPool:
        return build_pool(
            lib.discover(),
            node_name="n",
            features=ALL_FEATURES,
            policy=EVERYTHING,
            own_mig=frozenset(own),
        )

    before = pool()
    assert kinds(before) == ["gpu", "mig", "share", "monitor"]
    key = lib.discover().gpus[0].key
    lib.partitions.set_mig_mode(key, enabled=True)
    made = lib.partitions.create_mig_instance(key, 9, 4)
    ours = MigPlace(card=key, start=made.placement.start, size=made.placement.size)
    assert pool(ours) == before
    foreign = pool()
    tainted = [one.name for one in foreign.devices if causes(one) == ["foreign-mig"]]
    assert any(name.endswith("-mig-3g40gb-4") for name in tainted)
    assert not any(name.endswith("-mig-3g40gb-0") for name in tainted)
    lib.partitions.destroy_mig_instance(key, made.gpu_instance_id)
    assert pool() == before
    lib.close()
