# SPDX-License-Identifier: Apache-2.0
"""``gpudra local`` as a command: parsing, exit codes, and what it says when there is no cluster."""

import argparse
import json
from pathlib import Path

import pytest

from gpudra.api.errors import StateError
from gpudra.controller.ctl.local import cli
from gpudra.controller.ctl.local.cli import add_arguments, run
from gpudra.controller.ctl.local.down import _interfaces_in, down
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.status import ClusterStatus, ComponentStatus


def parse(*arguments: str) -> argparse.Namespace:
    """Parse as ``gpudra local`` does."""
    parser = argparse.ArgumentParser(prog="gpudra local")
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments", [(), ("sideways",), ("up", "--nodes", "x"), ("status", "-o", "xml")]
)
def test_wrong_usage_exits_with_two(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage goes to standard error."""
    with pytest.raises(SystemExit) as exit_info:
        parse(*arguments)

    assert exit_info.value.code == 2
    assert "usage: gpudra local" in capsys.readouterr().err


def test_options_not_given_stay_open() -> None:
    """``up`` must tell "not asked" from a value, to keep what was asked before."""
    args = parse("up")

    assert (args.nodes, args.fake_nodes, args.hardware, args.feature_gates) == (
        None,
        None,
        None,
        None,
    )
    assert args.no_agent is False


def test_no_cluster_is_not_a_healthy_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``status`` says how to start one, and exits 1."""
    assert run(parse("status", "--dir", str(tmp_path / "none"))) == 1
    assert "start one with `gpudra local up`" in capsys.readouterr().out
    assert run(parse("status", "-o", "json", "--dir", str(tmp_path / "none"))) == 1
    assert json.loads(capsys.readouterr().out) == {"healthy": False, "components": [], "nodes": []}


def test_down_without_a_cluster_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and makes no folder."""
    assert run(parse("down", "--dir", str(tmp_path / "none"))) == 0
    assert "no cluster in" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_a_damaged_state_does_not_keep_a_cluster_from_ending(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``down --purge`` goes on without it, and removes everything but the programs."""
    layout = Layout(tmp_path / "c", tmp_path / "c" / "bin")
    layout.make_dirs()
    layout.bin_dir.mkdir()
    layout.state_file.write_text("{")

    assert down(layout, purge=True)

    assert "damaged" in capsys.readouterr().err
    assert list(layout.base.iterdir()) == [layout.bin_dir]


def test_errors_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No trace: what happened, to what, and what to do."""

    def fail(layout: Layout, args: argparse.Namespace) -> int:
        raise StateError("is damaged", obj="file", hint="delete it")

    monkeypatch.setattr(cli, "_status", fail)

    assert run(parse("status", "--dir", "/tmp/none")) == 1
    assert capsys.readouterr().err == "error: file: is damaged; delete it\n"


def test_the_table_tells_stopped_from_unhealthy() -> None:
    """One line a component, aligned; the whole is healthy only if all are."""
    status = ClusterStatus(
        None,
        (
            ComponentStatus("etcd", True, 12, "http://127.0.0.1:1", ""),
            ComponentStatus("kubelet-node-1", False, 13, "-", "node not Ready"),
            ComponentStatus("agent", False, None, "-", ""),
        ),
    )

    assert status.to_table().splitlines() == [
        "COMPONENT       STATE      PID  ENDPOINT            DETAIL",
        "etcd            healthy    12   http://127.0.0.1:1",
        "kubelet-node-1  unhealthy  13   -                   node not Ready",
        "agent           stopped    -    -",
    ]
    assert not status.healthy


def test_interfaces_of_pods_are_found_by_their_routes(tmp_path: Path) -> None:
    """The kernel's table has addresses as little-endian words."""
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\n"
        "eth0\t00000000\t010200C0\n"
        "veth1\t0202800A\t00000000\n"
        "veth2\t0203800A\t00000000\n"
    )

    assert _interfaces_in("10.128.2.0/24", table) == ["veth1"]
