# SPDX-License-Identifier: Apache-2.0
"""The image that is made without a builder, and how it compares with the one of the Containerfile."""

import importlib.util
import io
import json
import marshal
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from gpudra.controller.ctl.local import ownimage
from gpudra.controller.ctl.local.bytecode import compiled
from gpudra.controller.ctl.local.layers import Entry, Layer, cached, write_archive
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.controller.ctl.local.ownimage import NOT_NEEDED, PREFIX, SITE

ROOT = checkout_dir()
CONTAINER = ROOT / "deploy" / "container"


@pytest.fixture(scope="module")
def layers() -> dict[str, set[str]]:
    """The names of the files in the image, by layer."""
    return {layer.name: {entry.name for entry in layer.entries} for layer in ownimage.layers()}


def copied(containerfile: str) -> list[str]:
    """What the Containerfile takes from the checkout."""
    lines = [line for line in containerfile.splitlines() if line.startswith("COPY ")]
    return [name for line in lines if "--from" not in line for name in line.split()[1:-1]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that pip installs in the Containerfile: of a wheel made of what it copies."""
    source = tmp_path_factory.mktemp("source")
    for name in copied((CONTAINER / "Containerfile").read_text()):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    script = "from setuptools import build_meta as b; print(b.build_wheel('wheels'))"
    (source / "wheels").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = (source / "wheels").glob("*.whl")
    with zipfile.ZipFile(found) as archive:
        return set(archive.namelist())


def test_our_files_are_those_that_the_containerfile_installs(
    layers: dict[str, set[str]], wheel: set[str]
) -> None:
    """Module for module and data file for data file; what describes the installation apart."""
    inside = {name.removeprefix(f"{SITE}/") for name in layers["gpudra"] if SITE in name}
    ours = {name for name in inside if name.startswith("gpudra/") and "__pycache__" not in name}

    assert ours == {name for name in wheel if name.startswith("gpudra/")}
    assert {"METADATA", "entry_points.txt"} <= {
        name.rpartition("/")[2] for name in inside if ".dist-info/" in name
    }


def test_the_commands_are_those_that_pip_makes(layers: dict[str, set[str]]) -> None:
    """Beside the interpreter of the same virtual environment."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    commands = {name for files in layers.values() for name in files if f"{PREFIX}/bin/" in name}

    assert commands == {f"{PREFIX}/bin/{name}" for name in (*scripts, "python")}
    assert f"COPY --from=build /{PREFIX} /{PREFIX}" in (CONTAINER / "Containerfile").read_text()


def test_both_images_have_the_same_distributions(layers: dict[str, set[str]]) -> None:
    """The Containerfile names the dependencies of the project but one; here they are with theirs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [need for need in project["dependencies"] if need.split(">")[0] not in NOT_NEEDED]
    lines = (CONTAINER / "requirements.txt").read_text().splitlines()
    infos = {
        re.sub(r"[-_.]+", "-", match.group(1)).lower()
        for name in layers["dependencies"]
        if (match := re.search(r"site-packages/([^/]+)-[^-/]+\.dist-info/METADATA$", name))
    }

    assert [line for line in lines if not line.startswith("#")] == wanted
    assert {need.split(">")[0] for need in wanted} <= infos
    assert infos == {one.name.lower().replace("_", "-") for one in ownimage.distributions("gpudra")}


def test_nothing_of_the_checkout_or_the_developer_is_in_it(layers: dict[str, set[str]]) -> None:
    """No editable install, no tests, no tools."""
    names = {name for files in layers.values() for name in files}

    assert not [name for name in names if "__editable__" in name or "/tests/" in name]
    assert not [name for name in names if re.search(r"/(pytest|mypy|ruff|pip)[-/]", name)]


def test_every_module_is_compiled(layers: dict[str, set[str]]) -> None:
    """A container's file system is read-only, so nothing is compiled when it starts."""
    names = layers["gpudra"]
    modules = [name for name in names if name.endswith(".py")]
    tag = sys.implementation.cache_tag

    for name in modules:
        folder, _, file = name.rpartition("/")
        assert f"{folder}/__pycache__/{file.removesuffix('.py')}.{tag}.pyc" in names


def test_a_compiled_module_needs_no_time_of_its_source(tmp_path: Path) -> None:
    """It is marked as unchecked (PEP 552) and holds the module's code, cached or not."""
    module = tmp_path / "module.py"
    module.write_text("ANSWER = 42\n")
    contents = [compiled(module, "/module.py")]
    subprocess.run([sys.executable, "-m", "py_compile", module], check=True)
    contents.append(compiled(module, "/module.py"))

    for content in contents:
        assert content[:4] == importlib.util.MAGIC_NUMBER
        assert content[4:8] == b"\x01\x00\x00\x00"
        space: dict[str, object] = {}
        exec(marshal.loads(content[16:]), space)
        assert space["ANSWER"] == 42


def test_the_same_files_give_the_same_layer(tmp_path: Path) -> None:
    """Only content counts for our own files: a checkout gives every file a new time."""
    file = tmp_path / "a.py"
    file.write_text("1")

    def key(content: str) -> str:
        file.write_text(content)
        return Layer("x", (Entry("a.py", file),), by_content=True).key()

    assert key("1") == key("1")
    assert key("1") != key("2")


def test_a_layer_is_written_once_and_its_forerunner_goes(tmp_path: Path) -> None:
    """Folders of the build machine do not fill up with every change."""
    first = cached(Layer("x", (Entry("a", b"1"),)), tmp_path)
    written = first.stat().st_mtime_ns
    assert cached(Layer("x", (Entry("a", b"1"),)), tmp_path).stat().st_mtime_ns == written

    second = cached(Layer("x", (Entry("a", b"2"),)), tmp_path)

    assert list(tmp_path.iterdir()) == [second]


def test_a_layer_knows_neither_users_nor_times(tmp_path: Path) -> None:
    """Files are root's and readable by all, links stay links."""
    secret = tmp_path / "s"
    secret.write_text("x")
    secret.chmod(0o700)
    layer = Layer("x", (Entry("bin/s", secret), Entry("l", link="/bin/s")))

    with tarfile.open(cached(layer, tmp_path / "cache")) as archive:
        file, link = archive.getmembers()

    assert (file.name, file.mode, file.uid, file.mtime) == ("bin/s", 0o755, 0, 0)
    assert (link.issym(), link.linkname) == (True, "/bin/s")


def test_the_archive_names_its_layers_by_their_content(tmp_path: Path) -> None:
    """As a container runtime checks it when it imports the archive."""
    paths = [cached(Layer(name, (Entry(name, b"1"),)), tmp_path) for name in ("low", "high")]
    target = tmp_path / "image.tar"

    write_archive(paths, target, image="a:1", architecture="amd64", config={"Cmd": ["x"]})

    with tarfile.open(target) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    (manifest,) = json.loads(files["manifest.json"])
    document = json.loads(files[manifest["Config"]])
    digests = [f"sha256:{name.split('/')[0]}" for name in manifest["Layers"]]
    assert manifest["RepoTags"] == ["a:1"]
    assert document["rootfs"]["diff_ids"] == digests
    with tarfile.open(fileobj=io.BytesIO(files[manifest["Layers"][0]])) as low:
        assert low.getnames() == ["low"]
