# SPDX-License-Identifier: Apache-2.0
"""Socket names within 107 bytes, and what is in the way of a new socket."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.kubelet_plugin.sockets import clear_stale, remove_dead_siblings, socket_paths

UID = "0f7c1a2e-94f5-4b1c-9c57-0123456789ab"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path."""
    with tempfile.TemporaryDirectory(prefix="gpudra-") as found:
        yield Path(found)


def served(path: Path) -> socket.socket:
    """A socket that somebody serves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen()
    return found


def test_names_are_those_that_the_kubelet_s_helper_uses() -> None:
    """One instance, and one with its uid."""
    root = Path("/var/lib/kubelet")
    plain = socket_paths(root, "gpu.gpudra.io")
    assert str(plain.service) == "/var/lib/kubelet/plugins/gpu.gpudra.io/dra.sock"
    assert str(plain.registration) == "/var/lib/kubelet/plugins_registry/gpu.gpudra.io-reg.sock"
    rolling = socket_paths(root, "gpu.gpudra.io", UID)
    assert rolling.service.name == f"dra-{UID}.sock"
    assert rolling.registration.name == f"gpu.gpudra.io-{UID}-reg.sock"


@pytest.mark.parametrize("length", range(5, 64, 7))
def test_no_name_is_longer_than_a_socket_may_be(length: int) -> None:
    """Long driver names are hashed; two instances never get the same name."""
    driver = "d" * length
    one = socket_paths(Path("/var/lib/kubelet"), driver, UID)
    two = socket_paths(Path("/var/lib/kubelet"), driver, UID.replace("0", "1"))
    for path in (one.service, one.registration):
        assert len(str(path)) <= 107
    assert one.service != two.service
    assert one.registration != two.registration


def test_a_folder_that_is_too_long_is_refused_with_its_length() -> None:
    """What to shorten is said."""
    with pytest.raises(InputError, match=r"has \d+ bytes, the system allows 107") as caught:
        socket_paths(Path("/" + "x" * 100), "gpu.gpudra.io", UID)
    assert "--kubelet-root" in str(caught.value)


def test_a_dead_socket_is_removed_and_a_living_one_is_not(folder: Path) -> None:
    """A killed process leaves its file; a running one must not lose it."""
    path = folder / "dra.sock"
    clear_stale(path)
    living = served(path)
    with pytest.raises(InputError, match="is served by another process"):
        clear_stale(path)
    living.close()
    clear_stale(path)
    assert not path.exists()


def test_a_file_in_the_way_is_not_removed(folder: Path) -> None:
    """It is somebody's."""
    path = folder / "dra.sock"
    path.write_text("data")
    with pytest.raises(InputError, match="is not a socket"):
        clear_stale(path)
    assert path.read_text() == "data"


def test_dead_siblings_go_and_others_stay(folder: Path) -> None:
    """Earlier instances of this driver only."""
    paths = socket_paths(folder, "gpu.gpudra.io", UID)
    dead = socket_paths(folder, "gpu.gpudra.io", "dead")
    alive = socket_paths(folder, "gpu.gpudra.io", "alive")
    other = socket_paths(folder, "nic.example.com", "dead")
    for one in (dead, other):
        served(one.service).close()
        served(one.registration).close()
    keep = [served(alive.service), served(alive.registration)]
    assert remove_dead_siblings(paths, "gpu.gpudra.io") == [dead.service, dead.registration]
    assert alive.service.exists()
    assert other.registration.exists()
    for one_socket in keep:
        one_socket.close()
