# SPDX-License-Identifier: Apache-2.0
"""What is remembered between calls."""

import json
from pathlib import Path

import pytest

from gpudra.api.errors import StateError
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.plan import new_node
from gpudra.controller.ctl.local.state import ClusterState, load, locked, save, write_atomic


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty state folder."""
    return Layout(tmp_path, tmp_path / "bin")


def test_what_was_saved_is_loaded(layout: Layout) -> None:
    """Nodes, ports and options survive the file."""
    node = new_node(layout, 1, iter([1, 2, 3]).__next__)
    state = ClusterState(ports={"etcd": 1}, nodes=(node,), fake_nodes=7, hardware="a30-2x")

    save(layout, state)

    assert load(layout) == state


def test_no_file_is_no_cluster(layout: Layout) -> None:
    """A fresh folder remembers nothing."""
    assert load(layout) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "nodes": [{"x": 1}], "ports": {}}']
)
def test_a_damaged_file_is_named_with_the_way_out(layout: Layout, text: str) -> None:
    """The error names the file and tells how to begin anew."""
    layout.state_file.write_text(text)

    with pytest.raises(StateError, match=r"state\.json: the file is damaged .*down --purge"):
        load(layout)


def test_a_file_of_another_version_is_refused(layout: Layout) -> None:
    """A newer gpudra's state is not guessed at."""
    layout.state_file.write_text(json.dumps({"version": 99}))

    with pytest.raises(StateError, match="version 99 is not the version 1"):
        load(layout)


def test_two_commands_do_not_work_on_one_cluster(layout: Layout) -> None:
    """The second one is told so at once, and may go on once the first has ended."""
    with locked(layout), pytest.raises(StateError, match="another `gpudra local"), locked(layout):
        pass

    with locked(layout):
        assert layout.lock_file.exists()


def test_an_unchanged_file_is_not_written(tmp_path: Path) -> None:
    """Its time tells when the content last changed, which decides about restarts."""
    file = tmp_path / "deep" / "file"

    assert write_atomic(file, "a")
    assert not write_atomic(file, "a")
    assert write_atomic(file, "b")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["file"]
