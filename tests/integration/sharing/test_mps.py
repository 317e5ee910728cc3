# SPDX-License-Identifier: Apache-2.0
"""MPS daemons with real processes: start, limits, death, silence, adoption, the end."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from gpudra.api.errors import DeviceGoneError, HardwareError
from gpudra.driver.devicelib.protocol import ComputeMode
from gpudra.kubelet_plugin.sharing.mps_daemon import NoAnswerError
from gpudra.kubelet_plugin.sharing.processes import end, identify
from tests.integration.sharing.conftest import DEVICE, MpsNode
from tests.support.plugin import uid

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def test_the_first_claim_starts_and_the_last_one_ends_it(node: MpsNode) -> None:
    """One daemon for all claims of a device; mode and folder as they were afterwards."""
    agent = node.agent()
    node.tuning.modes["GPU-0"] = ComputeMode.PROHIBITED
    agent.prepare(node.share(1))
    first = node.daemons()
    agent.prepare(node.share(2))
    assert node.daemons() == first
    assert len(first) == 1
    assert node.tuning.modes["GPU-0"] is EXCLUSIVE
    assert agent.verify(node.share(1)) == agent.verify(node.share(2)) == ()
    agent.undo(node.share(1))
    assert node.daemons() == first
    agent.undo(node.share(2))
    assert node.daemons() == ()
    assert node.tuning.modes["GPU-0"] is ComputeMode.PROHIBITED
    assert not (node.folder / DEVICE).exists()


def test_doing_and_undoing_twice_changes_nothing(node: MpsNode) -> None:
    """A retry finds what the first try did, undoing what never was is harmless."""
    agent = node.agent()
    agent.undo(node.share())
    assert node.tuning.calls == []
    agent.prepare(node.share())
    first = node.daemons()
    agent.prepare(node.share())
    assert node.daemons() == first
    agent.undo(node.share())
    agent.undo(node.share())
    assert node.tuning.modes["GPU-0"] is ComputeMode.DEFAULT


def test_the_daemon_gives_nobody_more_than_the_largest_share(node: MpsNode) -> None:
    """Defaults and running servers follow the claims; one without compute has all of it."""
    agent = node.agent()
    agent.prepare(node.share(1, memory=1024, compute=20))
    daemon = agent._daemon(DEVICE)
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == "1024M"
    assert daemon.ask("get_default_active_thread_percentage") == "20.0"
    daemon.ask("start_server -uid 0")
    (server,) = daemon.servers()
    agent.prepare(node.share(2, memory=4096, compute=30))
    assert daemon.ask(f"get_device_pinned_mem_limit {server} 0") == "4096M"
    assert daemon.ask(f"get_active_thread_percentage {server}") == "30.0"
    agent.prepare(node.share(3, memory=512))
    assert daemon.ask("get_default_active_thread_percentage") == "100.0"
    agent.undo(node.share(2))
    agent.undo(node.share(3))
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == "1024M"
    assert daemon.ask(f"get_active_thread_percentage {server}") == "20.0"
    agent.undo(node.share(1))
    assert node.daemons() == (), "the server has gone with its daemon"


def test_a_mig_device_keeps_the_mode_of_its_card(node: MpsNode) -> None:
    """The mode is the card's, and others use the card too."""
    agent = node.agent()
    one = replace(node.share(memory=None), partition=True, target="MIG-1")
    agent.prepare(one)
    assert agent.verify(one) == ()
    agent.undo(one)
    assert node.tuning.calls == []


def test_a_killed_daemon_is_started_again_with_its_limits(node: MpsNode) -> None:
    """The look after daemons finds it; verify says so until then."""
    agent = node.agent()
    agent.prepare(node.share(memory=2048))
    assert agent.check() == ()
    node.kill()
    assert agent.verify(node.share()) == (f"the MPS daemon of {DEVICE} does not run",)
    (report,) = agent.check()
    assert (report.device, report.healthy) == (DEVICE, True)
    assert report.message == "the MPS daemon had ended and was started again"
    assert agent.verify(node.share()) == ()
    assert agent._daemon(DEVICE).ask("get_default_device_pinned_mem_limit 0") == "2048M"
    agent.undo(node.share())


def test_a_reset_of_the_card_loses_the_mode_and_it_is_set_again(node: MpsNode) -> None:
    """A reset ends the daemon too; verify names the mode as long as it is wrong."""
    agent = node.agent()
    agent.prepare(node.share())
    node.tuning.modes.clear()
    assert "so programs can go round MPS" in agent.verify(node.share())[0]
    node.kill()
    agent.check()
    assert node.tuning.modes["GPU-0"] is EXCLUSIVE
    agent.undo(node.share())


def test_a_hung_daemon_is_killed_at_the_second_miss(node: MpsNode) -> None:
    """One miss may be a busy node. The stubborn one ignores SIGTERM too."""
    node.agent().prepare(node.share())
    before = node.daemons()
    agent = node.agent(answer=3, stop=0.2)
    node.fake.behave("stubborn")
    (first,) = agent.check()
    assert (first.healthy, node.daemons()) == (False, before)
    node.fake.behave("ok")
    end(before, signal.SIGSTOP, 0)  # whatever the mood, this one never answers
    (second,) = agent.check()
    assert second.healthy, second.message
    assert "did not answer" in second.message
    assert set(node.daemons()).isdisjoint(before)
    node.agent().undo(node.share())


def test_a_daemon_that_cannot_be_started_again_is_reported_each_time(node: MpsNode) -> None:
    """Nothing is raised, the next look tries again and succeeds."""
    agent = node.agent()
    agent.prepare(node.share())
    node.kill()
    node.fake.behave("no-start")
    (report,) = agent.check()
    assert not report.healthy
    assert "cannot be started again" in report.message
    node.fake.behave("ok")
    (report,) = agent.check()
    assert report.healthy
    agent.undo(node.share())


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        ("no-start", r"ended at once with code 1: An instance of this daemon is already running"),
        ("refuse", r"does not answer after its start.*Cannot do that now"),
    ],
)
def test_a_daemon_that_does_not_come_up_fails_the_claim(node: MpsNode, mood: str, why: str) -> None:
    """The reason is the daemon's own; undoing leaves nothing behind."""
    agent = node.agent(start=0.5)
    node.fake.behave(mood)
    with pytest.raises(HardwareError, match=why):
        agent.prepare(node.share())
    agent.undo(node.share())
    assert node.daemons() == ()
    assert node.tuning.modes["GPU-0"] is ComputeMode.DEFAULT
    assert not (node.folder / DEVICE).exists()


def test_a_daemon_that_stays_mute_is_ended(node: MpsNode) -> None:
    """It runs and nobody reaches it: not a start."""
    agent = node.agent(start=0.3)
    node.fake.behave("mute")
    with pytest.raises(HardwareError, match="does not answer after its start"):
        agent.prepare(node.share())
    assert node.daemons() == ()
    agent.undo(node.share())


def test_a_daemon_that_dies_at_a_command_is_an_error_not_a_wait(node: MpsNode) -> None:
    """Its caller gets no answer because there is nobody."""
    agent = node.agent()
    agent.prepare(node.share())
    node.fake.behave("die")
    with pytest.raises(HardwareError) as raised:
        agent._daemon(DEVICE).ask("get_server_list")
    assert not isinstance(raised.value, NoAnswerError)
    node.fake.behave("ok")
    agent.undo(node.share())


def test_a_restarted_agent_adopts_the_daemon(node: MpsNode) -> None:
    """By process id, start time and boot; nothing is started or stopped."""
    node.agent().prepare(node.share(1))
    before = node.daemons()
    agent = node.agent()
    assert agent.present(node.share(1))
    agent.prepare(node.share(2))
    assert node.daemons() == before
    agent.undo(node.share(1))
    agent.undo(node.share(2))
    assert node.daemons() == ()


@pytest.mark.parametrize("note", [None, "{", '{"pid": 1}'])
def test_a_daemon_that_nobody_noted_is_found_by_its_mark(node: MpsNode, note: str | None) -> None:
    """The agent was killed between start and note, or while it wrote."""
    node.agent().prepare(node.share())
    path = node.folder / DEVICE / "daemon.json"
    if note is None:
        path.unlink()
    else:
        path.write_text(note)
    before = node.daemons()
    agent = node.agent()
    assert agent.present(node.share())
    agent.undo(node.share())
    assert before
    assert node.daemons() == ()


def test_a_foreign_process_is_never_taken_for_the_daemon(node: MpsNode) -> None:
    """Not even one that has got the id that was noted."""
    foreign = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identify(foreign.pid)
        assert identity is not None
        agent = node.agent()
        agent.prepare(node.share())
        node.kill()
        path = node.folder / DEVICE / "daemon.json"
        path.write_text(
            f'{{"pid": {foreign.pid}, "start": {identity.start - 1}, "boot": "{identity.boot}"}}'
        )
        assert not agent.present(node.share())
        agent.undo(node.share())
        assert foreign.poll() is None
    finally:
        foreign.communicate(b"\n", timeout=30)


def test_a_sweep_ends_what_no_claim_uses(node: MpsNode) -> None:
    """Claims that are gone first, the daemon with the last one."""
    agent = node.agent()
    agent.prepare(node.share(1))
    agent.prepare(node.share(2))
    assert agent.sweep(frozenset({uid(1), uid(2)})) == ()
    assert agent.sweep(frozenset({uid(1)})) == (f"MPS of {DEVICE} for claims {uid(2)}",)
    assert node.daemons()
    assert agent.sweep(frozenset()) == (f"MPS of {DEVICE} for claims {uid(1)}",)
    assert node.daemons() == ()
    assert node.tuning.modes["GPU-0"] is ComputeMode.DEFAULT


def test_a_card_that_is_gone_does_not_keep_the_claim(node: MpsNode) -> None:
    """It took its mode along. A card that only refuses keeps the folder for a later try."""
    agent = node.agent()
    agent.prepare(node.share())
    node.tuning.error = HardwareError("busy")
    with pytest.raises(HardwareError, match="busy"):
        agent.undo(node.share())
    assert (node.folder / DEVICE).exists()
    node.tuning.error = DeviceGoneError("gone")
    agent.undo(node.share())
    assert not (node.folder / DEVICE).exists()


def test_killed_anywhere_the_next_agent_can_undo(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each file written or removed on the way; mode and folder are as before."""

    class Killed(BaseException):
        """The process ends here."""

    from gpudra.kubelet_plugin import files

    real_write = files.write_atomically
    for number in range(3):
        writes = 0

        def write(*args: object, number: int = number, **more: object) -> None:
            nonlocal writes
            real_write(*args, **more)  # type: ignore[arg-type]
            if writes == number:
                raise Killed
            writes += 1

        monkeypatch.setattr(files, "write_atomically", write)
        with pytest.raises(Killed):
            node.agent().prepare(node.share())
        monkeypatch.setattr(files, "write_atomically", real_write)
        node.agent().undo(node.share())
        assert node.daemons() == ()
        assert node.tuning.modes.get("GPU-0", ComputeMode.DEFAULT) is ComputeMode.DEFAULT
        assert not (node.folder / DEVICE).exists()
