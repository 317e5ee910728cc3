# SPDX-License-Identifier: Apache-2.0
"""Where the local cluster keeps its files."""

from pathlib import Path

import pytest

from gpudra.controller.ctl.local import layout as layout_module
from gpudra.controller.ctl.local.layout import Layout, layout_for

SOCKET_NAME_LIMIT = 107


def test_the_variable_moves_binaries_and_the_default_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPUDRA_LOCAL_DIR is the folder of both."""
    monkeypatch.setenv("GPUDRA_LOCAL_DIR", "/var/x")

    layout = layout_for(None)

    assert (layout.base, layout.bin_dir) == (Path("/var/x"), Path("/var/x/bin"))


def test_another_cluster_shares_the_binaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--dir`` moves the cluster alone, so that nothing is built twice."""
    monkeypatch.setenv("GPUDRA_LOCAL_DIR", "/var/x")

    layout = layout_for("/tmp/other")

    assert (layout.base, layout.bin_dir) == (Path("/tmp/other"), Path("/var/x/bin"))


def test_the_default_lies_in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable it is ``.local`` beside the sources."""
    monkeypatch.delenv("GPUDRA_LOCAL_DIR", raising=False)

    assert layout_for(None).base == layout_module.checkout_dir() / ".local"


@pytest.mark.parametrize("length", [10, 43, 44, 45, 200])
def test_sockets_of_plugins_fit_their_addresses(length: int) -> None:
    """However long the folder's name is, a plugin's registration socket stays within 107 bytes."""
    base = Path("/" + "x" * (length - 1))
    node = Layout(base, base / "bin").node("node-1")

    socket = node.kubelet_root / "plugins_registry" / "gpu.gpudra.io-01234567-reg.sock"

    assert len(str(socket)) <= SOCKET_NAME_LIMIT


def test_a_long_folder_is_reached_through_a_link(tmp_path: Path, run_dir: Path) -> None:
    """The link is made with the folders, may be made again, and goes when asked."""
    base = tmp_path / ("long" * 20)
    layout = Layout(base, base / "bin")

    layout.make_dirs()
    layout.make_dirs()

    assert layout.short_base.parent == run_dir
    assert layout.short_base.resolve() == base
    layout.remove_link()
    layout.remove_link()
    assert not run_dir.exists()


def test_keys_are_private_to_root(tmp_path: Path) -> None:
    """Nobody else can look into the folder with the certificates."""
    layout = Layout(tmp_path, tmp_path / "bin")

    layout.make_dirs()

    assert layout.pki_dir.stat().st_mode & 0o077 == 0
