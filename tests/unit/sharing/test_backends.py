# SPDX-License-Identifier: Apache-2.0
"""The backends without processes of their own, the look into libraries, and the entry point."""

import contextlib
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import (
    DeviceGoneError,
    HardwareError,
    InputError,
    StateError,
)
from gpudra.driver.core.prepare import PreparePlan, Step
from gpudra.driver.core.sharing import Backend, Preload, Sharing, SharingPlan
from gpudra.driver.devicelib.protocol import TimeSlice
from gpudra.kubelet_plugin.sharing import Backends, SharingSettings, open_backends
from gpudra.kubelet_plugin.sharing.elf import _parse, read_library
from gpudra.kubelet_plugin.sharing.hami_core import HOOKS, library_problem
from gpudra.kubelet_plugin.sharing.launch import MARK, MpsLaunch, daemon_environment
from tests.support.plugin import uid
from tests.support.sharing import allocation
from tests.support.tuning import FakeTuning, TunedLib


def sharing(backend: Backend, claim: int = 1, time_slice: str = "long") -> Sharing:
    """What a claim takes of a share of GPU-0."""
    return Sharing(
        backend=backend,
        device="gpu-0-share",
        card="GPU-0",
        target="GPU-0",
        claim_uid=uid(claim),
        memory_mib=1024,
        time_slice=time_slice,
        requests=("gpu",),
    )


def library(folder: Path, names: tuple[str, ...] = HOOKS, *flags: str) -> Path:
    """A shared library with these functions."""
    source = folder / "library.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    made = folder / "libvgpu.so"
    command = ["gcc", "-shared", "-fPIC", "-fno-builtin", *flags, "-o", made, source]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def tuning() -> FakeTuning:
    """The cards' settings."""
    return FakeTuning()


@pytest.fixture
def backends(tmp_path: Path, tuning: FakeTuning) -> Backends:
    """All backends of a node with a library that shows its hooks, without MPS."""
    settings = SharingSettings(runtime_dir=tmp_path / "run", hami_library=str(library(tmp_path)))
    return open_backends(settings, TunedLib(tuning))


# --- time slices --------------------------------------------------------------------------------


def test_time_slices_are_set_with_the_first_and_put_back_with_the_last(
    backends: Backends, tuning: FakeTuning
) -> None:
    """The claim in the middle changes nothing."""
    steps = [sharing(Backend.TIME_SLICE, number).step() for number in (1, 2)]
    for number in (1, 2):
        backends.prepare(SharingPlan(shares=(sharing(Backend.TIME_SLICE, number),)))
    backends.undo(steps[:1])
    assert tuning.slices["GPU-0"] is TimeSlice.LONG
    assert backends.verify(steps[:1]) == ("time slices of gpu-0-share are not set",)
    assert backends.verify(steps[1:]) == ()
    backends.undo(steps[1:])
    backends.undo(steps[1:])
    assert tuning.slices["GPU-0"] is TimeSlice.DEFAULT
    assert tuning.calls.count(("slice", "GPU-0", "default")) == 1


def test_what_was_never_set_is_not_put_back(backends: Backends, tuning: FakeTuning) -> None:
    """Undoing a reservation whose step never began must not touch the card."""
    backends.undo([sharing(Backend.TIME_SLICE).step()])
    assert tuning.calls == []


def test_a_card_that_refuses_keeps_the_user_and_one_that_is_gone_does_not(
    backends: Backends, tuning: FakeTuning
) -> None:
    """Busy is tried again; a card that left took its settings along."""
    one = sharing(Backend.TIME_SLICE)
    backends.prepare(SharingPlan(shares=(one,)))
    tuning.error = HardwareError("busy")
    with pytest.raises(HardwareError, match="busy"):
        backends.undo([one.step()])
    assert backends.verify([one.step()]) == ()
    assert backends.sweep([]) == ()
    tuning.error = DeviceGoneError("gone")
    backends.undo([one.step()])
    assert backends.verify([one.step()]) != ()


def test_cards_without_such_settings_are_told_so(tmp_path: Path) -> None:
    """And MPS needs them too, beside its program."""
    lib = TunedLib(None)
    node = open_backends(
        SharingSettings(runtime_dir=tmp_path, mps=MpsLaunch(program="/bin/true")), lib
    ).node
    assert node.backends == {
        Backend.MPS: "fake cards have no compute mode",
        Backend.HAMI_CORE: "no library of HAMi-core is configured",
        Backend.TIME_SLICE: "fake cards have no such setting",
        Backend.NONE: "",
    }


# --- HAMi-core ----------------------------------------------------------------------------------


def test_a_claims_folder_is_made_verified_and_removed(backends: Backends, tmp_path: Path) -> None:
    """Twice, as a retry does; verify names each part that is missing."""
    one = sharing(Backend.HAMI_CORE)
    plan = SharingPlan(shares=(one,))
    backends.prepare(plan)
    backends.prepare(plan)
    assert backends.verify(plan.steps) == ()
    folder = tmp_path / "run/hami-core" / uid(1)
    (folder / "ld.so.preload").write_text("/tmp/other.so\n")
    (folder / "cache").rmdir()
    told = " ".join(backends.verify(plan.steps))
    assert "cache is missing" in told
    assert "ld.so.preload does not name the library" in told
    backends.undo(plan.steps)
    backends.undo(plan.steps)
    assert not folder.exists()


def test_a_library_that_hides_its_hooks_is_refused(tmp_path: Path, backends: Backends) -> None:
    """It would be loaded and limit nothing, without a word."""
    assert backends.node.backends[Backend.HAMI_CORE] == ""
    library(tmp_path, HOOKS, "-fvisibility=hidden")
    assert "hidden symbols" in backends.node.backends[Backend.HAMI_CORE], "looked at anew"
    with pytest.raises(HardwareError, match=r"hami-core does not hold: .*hidden symbols"):
        backends.prepare(SharingPlan(shares=(sharing(Backend.HAMI_CORE),)))
    assert not (tmp_path / "run/hami-core" / uid(1)).exists(), "what failed is taken back"


def test_each_missing_hook_is_named(tmp_path: Path) -> None:
    """Also in a library without debug symbols."""
    for missing in HOOKS:
        made = library(tmp_path, tuple(name for name in HOOKS if name != missing), "-s")
        assert f"does not export {missing}," in library_problem(made)
    assert library_problem(library(tmp_path, HOOKS, "-s")) == ""


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(100)])
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    """By what it is, with its name."""
    path = tmp_path / "libvgpu.so"
    path.write_bytes(content)
    assert library_problem(path).startswith(f"{path}: is no shared library")


def test_a_library_for_another_machine_is_refused(tmp_path: Path) -> None:
    """The dynamic linker would only grumble and go on."""
    path = library(tmp_path)
    content = bytearray(path.read_bytes())
    content[18:20] = (8).to_bytes(2, "little")  # MIPS
    path.write_bytes(content)
    assert "another architecture" in library_problem(path)


@given(st.data())
def test_no_damage_to_a_library_ends_the_reader(data: st.DataObject) -> None:
    """A cut or changed file is an error of the file, or tells other names."""
    content = bytearray(read_once())
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    with contextlib.suppress(struct.error, ValueError, IndexError):
        _parse(bytes(content))


def read_once() -> bytes:
    """Some library of this machine."""
    import _ctypes

    return Path(_ctypes.__file__).read_bytes()


def test_a_missing_library_is_an_input_error(tmp_path: Path) -> None:
    """Named by its path."""
    with pytest.raises(InputError, match="No such file"):
        read_library(tmp_path / "nothing.so")


def test_paths_must_be_absolute(tmp_path: Path) -> None:
    """The container runtime has another working folder."""
    with pytest.raises(InputError, match="not absolute"):
        SharingSettings(runtime_dir=Path("run"))
    with pytest.raises(InputError, match="not absolute"):
        SharingSettings(runtime_dir=tmp_path, hami_library="libvgpu.so")


# --- the entry point ----------------------------------------------------------------------------


def test_a_plan_that_fails_half_way_is_taken_back(backends: Backends, tuning: FakeTuning) -> None:
    """The first device's part goes when the second one's cannot be done."""
    first = sharing(Backend.TIME_SLICE)
    second = sharing(Backend.MPS)
    with pytest.raises(HardwareError):
        backends.prepare(SharingPlan(shares=(first, second)))
    assert backends.verify([first.step()]) != ()
    assert tuning.slices["GPU-0"] is TimeSlice.DEFAULT


def test_a_sweep_leaves_the_living_alone(backends: Backends) -> None:
    """Everything of claims that are gone goes, and is named."""
    shares = [sharing(Backend.HAMI_CORE, number) for number in (1, 2)]
    slices = [sharing(Backend.TIME_SLICE, number) for number in (1, 2)]
    for one in (*shares, *slices):
        backends.prepare(SharingPlan(shares=(one,)))
    assert set(backends.sweep([uid(1)])) == {
        f"HAMi-core of claim {uid(2)}",
        f"time slices of gpu-0-share for claim {uid(2)}",
    }
    assert backends.verify([shares[0].step(), slices[0].step()]) == ()
    assert backends.check() == ()


def test_reports_are_by_device(backends: Backends) -> None:
    """For the claim's status."""
    told = backends.describe([sharing(Backend.NONE).step(), Step(kind="cdi-file", args={})])
    assert {name: one.reason for name, one in told.items()} == {"gpu-0-share": "NoIsolation"}


def test_there_is_one_handler_for_each_kind_of_step(backends: Backends) -> None:
    """A handler does, verifies, restores and undoes what its step says."""
    handlers = backends.handlers()
    assert set(handlers) == {f"share-{name}" for name in Backend}
    one = sharing(Backend.HAMI_CORE)
    step, handler = one.step(), handlers["share-hami-core"]
    plan = PreparePlan(claim=allocation(), devices=(), holds=(), steps=(step,))
    assert handler.do(step, plan) == {"target": "GPU-0"}
    assert handler.present(step)
    assert not handler.restore(step, plan)
    backends.undo([step])
    assert not handler.present(step)
    assert handler.restore(step, plan)
    handler.undo(step)
    assert not handler.present(step)
    assert {name: one.lasting for name, one in handlers.items()}["share-none"] is False


def test_a_step_whose_device_has_no_uuid_yet_asks_for_it(tmp_path: Path) -> None:
    """A MIG instance is made by an earlier step of the same plan."""
    asked = []

    def target_of(one: Sharing, _plan: PreparePlan) -> str:
        asked.append(one.device)
        raise HardwareError("no such instance")

    settings = SharingSettings(runtime_dir=tmp_path)
    backends = open_backends(settings, TunedLib(FakeTuning()), target_of=target_of)
    one = Sharing(backend=Backend.MPS, device="mig-1", card="GPU-0", target="", claim_uid=uid(1))
    plan = PreparePlan(claim=allocation(), devices=(), holds=(), steps=(one.step(),))
    with pytest.raises(HardwareError, match="no such instance"):
        backends.handlers()["share-mps"].do(one.step(), plan)
    assert asked == ["mig-1"]


def test_names_from_a_damaged_record_reach_no_other_folder(backends: Backends) -> None:
    """A step is read from a file: it may name no path."""
    with pytest.raises(InputError, match="not the uid"):
        backends.undo([Step(kind="share-hami-core", args=hostile(claim="../../etc"))])
    with pytest.raises(StateError, match="not the name of a device"):
        backends.undo([Step(kind="share-mps", args=hostile(device="../x"))])


def hostile(**fields: str) -> dict[str, object]:
    """Arguments of a step, some of them wrong."""
    return {**sharing(Backend.NONE).step().args, **fields}


def test_the_daemon_is_called_as_the_node_needs_it(tmp_path: Path) -> None:
    """In the driver's root, with a shared memory of its own, and without the caller's CUDA."""
    launch = MpsLaunch(program="/usr/bin/nvidia-cuda-mps-control", root="/run/nvidia/driver")
    command = launch.daemon_command(tmp_path)
    assert command[:4] == ["unshare", "--mount", "--propagation", "private"]
    tail = ["chroot", "/run/nvidia/driver", "/usr/bin/nvidia-cuda-mps-control", "-f"]
    assert command[-5:] == [str(tmp_path / "shm"), *tail]
    assert launch.ask_command() == tail[:-1]
    assert launch.seen_program() == Path("/run/nvidia/driver/usr/bin/nvidia-cuda-mps-control")
    assert MpsLaunch().seen_program() is None
    environment = daemon_environment({"CUDA_X": "1", "PATH": "/bin"}, tmp_path, "GPU-0")
    assert environment == {
        "PATH": "/bin",
        "CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{tmp_path}/log",
        "CUDA_VISIBLE_DEVICES": "GPU-0",
        MARK: str(tmp_path),
    }


def test_preload_by_variable_needs_no_file(tmp_path: Path) -> None:
    """Only the cache is made."""
    settings = SharingSettings(
        runtime_dir=tmp_path / "run",
        hami_library=str(library(tmp_path)),
        preload=Preload.ENV,
    )
    backends = open_backends(settings, TunedLib(FakeTuning()))
    plan = SharingPlan(shares=(sharing(Backend.HAMI_CORE),))
    backends.prepare(plan)
    assert backends.verify(plan.steps) == ()
    assert [one.name for one in (tmp_path / "run/hami-core" / uid(1)).iterdir()] == ["cache"]
