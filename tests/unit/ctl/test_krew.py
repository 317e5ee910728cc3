# SPDX-License-Identifier: Apache-2.0
"""The kubectl plugin: its archive, its manifest by krew's rules, its launcher."""

import hashlib
import io
import re
import subprocess
import tarfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from tools import krew

URI = "https://example.com/gpudra.tar.gz"


@pytest.fixture(scope="module")
def content() -> bytes:
    """The archive."""
    return krew.archive()


def test_the_same_source_makes_the_same_archive(content: bytes) -> None:
    """And the manifest carries its checksum, its address and the version of the package."""
    assert krew.archive() == content
    found = krew.manifest(content, URI)
    assert found["spec"]["version"] == f"v{version('gpudra')}"
    (platform,) = found["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(content).hexdigest()
    assert platform["uri"] == URI


def test_the_manifest_keeps_krews_rules(content: bytes) -> None:
    """https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest and its naming guide."""
    found = krew.manifest(content, URI)
    assert found["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert found["kind"] == "Plugin"
    assert re.fullmatch(r"[a-z0-9-]+", found["metadata"]["name"])
    spec = found["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    assert spec["description"]
    for platform in spec["platforms"]:
        assert set(platform) == {"selector", "uri", "sha256", "files", "bin"}
        assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])


def test_the_archive_has_what_runs(content: bytes) -> None:
    """The launcher, executable; the licence; a source tree that pip can install; no byte code."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        names = tar.getnames()
        assert tar.getmember("kubectl-gpudra").mode & 0o111
    assert "LICENSE" in names
    for wanted in ("pyproject.toml", "setup.py", "controller/ctl/main.py", "api/py.typed"):
        assert f"source/{wanted}" in names
    assert not [name for name in names if "__pycache__" in name]


def test_the_launcher_needs_a_new_python(tmp_path: Path) -> None:
    """An old one is told in one line, exit code 1, nothing installed."""
    launcher = tmp_path / "kubectl-gpudra"
    launcher.write_bytes((krew.KREW / "kubectl-gpudra").read_bytes())
    launcher.chmod(0o755)
    done = subprocess.run(
        [launcher, "devices"],
        env={"PATH": "/usr/bin:/bin", "GPUDRA_PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "Python 3.11" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubectl-gpudra"]


def test_pip_installs_the_plugin_too() -> None:
    """``kubectl-gpudra`` is a script of the package, and the same program as ``gpudra``."""
    scripts = {one.name: one.value for one in entry_points(group="console_scripts")}
    assert scripts["kubectl-gpudra"] == scripts["gpudra"] == "gpudra.controller.ctl.main:main"
