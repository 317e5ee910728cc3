# SPDX-License-Identifier: Apache-2.0
"""Images made without a registry."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

import pytest

from gpudra.controller.ctl.local import images
from gpudra.controller.ctl.local.images import (
    IMAGES,
    ImageError,
    build_archive,
    busybox_layer,
    docker_archive,
)

FAKE_BUSYBOX = "#!/bin/sh\n[ -e {fail} ] && exit 1\nprintf 'ash\\nbusybox\\nls\\nsh\\n'\n"


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    """A busybox that knows three applets beside itself."""
    path = tmp_path / "busybox"
    path.write_text(FAKE_BUSYBOX.format(fail=tmp_path / "fail"))
    path.chmod(0o755)
    return path


def test_the_layer_has_every_applet_as_a_link(busybox: Path) -> None:
    """Programs find sh and ls where they look, a temporary folder, and the user names."""
    layer = busybox_layer(busybox, ["sh", "ls", "busybox"])

    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        members = {member.name: member for member in archive}
    assert members["bin/busybox"].isreg()
    assert members["bin/busybox"].mode == 0o755
    assert members["bin/sh"].linkname == "busybox"
    assert members["tmp"].mode == 0o1777
    assert {"etc/passwd", "etc/group", "proc", "sys", "dev"} <= set(members)
    assert all(member.mtime == 0 and member.uid == 0 for member in members.values())


def test_the_archive_is_consistent(busybox: Path) -> None:
    """The manifest names configurations and the layer; digests are those of the content."""
    layer = busybox_layer(busybox, ["sh"])

    with tarfile.open(fileobj=io.BytesIO(docker_archive(layer, IMAGES, "amd64"))) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]

    manifest = json.loads(files["manifest.json"])
    assert [entry["RepoTags"] for entry in manifest] == [
        ["gpudra.local/busybox:1"],
        ["gpudra.local/pause:1"],
    ]
    for entry in manifest:
        config = files[entry["Config"]]
        assert entry["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
        assert json.loads(config)["rootfs"]["diff_ids"] == [
            f"sha256:{hashlib.sha256(layer).hexdigest()}"
        ]
        assert files[entry["Layers"][0]] == layer


def test_the_same_busybox_gives_the_same_archive(busybox: Path, tmp_path: Path) -> None:
    """An unchanged archive is not written, so nodes need not import it again."""
    target = tmp_path / "images.tar"
    build_archive(busybox, target)
    written = target.stat().st_mtime_ns

    build_archive(busybox, target)

    assert target.stat().st_mtime_ns == written


def test_a_busybox_that_does_not_run_is_named(busybox: Path, tmp_path: Path) -> None:
    """For example one for another architecture."""
    (tmp_path / "fail").touch()

    with pytest.raises(ImageError, match=r"busybox: does not run"):
        build_archive(busybox, tmp_path / "images.tar")


def test_an_unknown_architecture_is_refused(
    busybox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that says the wrong architecture would be refused later, and less clearly."""
    monkeypatch.setattr(platform, "machine", lambda: "s390x")

    with pytest.raises(ImageError, match="s390x"):
        build_archive(busybox, tmp_path / "images.tar")


def test_an_archive_is_imported_once(busybox: Path, tmp_path: Path) -> None:
    """The stamp in the runtime's folder remembers which archive it has."""
    ctr, log, archive, stamp = (tmp_path / name for name in ("ctr", "log", "a.tar", "stamp"))
    ctr.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    ctr.chmod(0o755)
    archive.write_text("one")

    images.import_archive(ctr, Path("/s"), archive, stamp)
    images.import_archive(ctr, Path("/s"), archive, stamp)
    archive.write_text("two")
    images.import_archive(ctr, Path("/s"), archive, stamp)

    assert log.read_text().splitlines() == [f"-a /s -n k8s.io images import {archive}"] * 2


def test_a_refused_import_is_an_error(tmp_path: Path) -> None:
    """The runtime's words are in it, and the next try imports again."""
    ctr, archive, stamp = (tmp_path / name for name in ("ctr", "a.tar", "stamp"))
    ctr.write_text("#!/bin/sh\necho no space >&2; exit 1\n")
    ctr.chmod(0o755)
    archive.touch()

    with pytest.raises(ImageError, match=r"a\.tar: cannot be imported: no space"):
        images.import_archive(ctr, Path("/s"), archive, stamp)

    assert not stamp.exists()
