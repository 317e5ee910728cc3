# SPDX-License-Identifier: Apache-2.0
"""What the machine must have, and how it is asked for."""

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from gpudra.controller.ctl.local import prerequisites
from gpudra.controller.ctl.local.prerequisites import (
    Package,
    PrerequisiteError,
    install_packages,
    is_static_elf,
    parse_go_version,
    required_go,
)
from gpudra.controller.ctl.local.progress import Progress


@pytest.fixture
def progress() -> Progress:
    """Progress that nobody reads."""
    return Progress(1, io.StringIO())


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records apt-get calls instead of making them; the packages are there after an install."""
    calls: list[list[str]] = []
    packages = tuple(
        Package(name, "a purpose", lambda: any("install" in call for call in calls))
        for name in ("runc", "busybox-static")
    )
    monkeypatch.setattr(prerequisites, "PACKAGES", packages)
    monkeypatch.setattr(prerequisites, "_apt", lambda arguments, progress: calls.append(arguments))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("YES", raising=False)
    return calls


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27rc1 linux/arm64", (1, 27)),
        ("go version devel +abc", ()),
        ("", ()),
    ],
)
def test_go_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    """Releases and candidates are understood; anything else is no version."""
    assert parse_go_version(text) == version


def test_the_newest_module_decides_about_go(tmp_path: Path) -> None:
    """The highest ``go`` line counts, and never less than 1.26."""
    for name, version in (("a", "1.26.0"), ("b", "1.26.6"), ("c", "1.24")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "go.mod").write_text(f"module {name}\n\ngo {version}\n")

    assert required_go(tmp_path) == (1, 26, 6)
    assert required_go(tmp_path / "a") == (1, 26)


def test_all_problems_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person without root, Go and disk space hears of all three, each with what to do."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(prerequisites, "BUILD_DISK_GIB", 10**9)

    with pytest.raises(PrerequisiteError) as error:
        prerequisites.check(tools_dir=tmp_path, base=tmp_path / "not" / "there", must_build=True)

    message = str(error.value)
    assert "need root: run it as root, for example with sudo" in message
    assert "Go is not installed: install Go 1.26 or newer" in message
    assert "GiB free, 1000000000 GiB are needed" in message


def test_an_old_go_is_named_with_the_version_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Go that may not fetch a newer toolchain must be new enough itself."""
    go = tmp_path / "go"
    go.write_text(
        '#!/bin/sh\n[ "$1" = version ] && echo "go version go1.25.1 linux/amd64" || echo local\n'
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    with pytest.raises(
        PrerequisiteError, match=r"Go 1\.25\.1 is too old: Go 1\.26 or newer is needed"
    ):
        prerequisites.check(tools_dir=tmp_path, base=tmp_path, must_build=True)


def test_go_is_not_asked_for_when_nothing_is_to_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built programs run on a machine without Go."""
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "go" else name)

    found = prerequisites.problems(tools_dir=tmp_path, base=tmp_path, must_build=False)

    assert not any("Go" in problem for problem in found)


def test_packages_are_installed_after_a_yes(
    apt: list[list[str]], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question names them; the list of packages is refreshed once before."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    questions: list[str] = []

    def answer(question: str) -> str:
        questions.append(question)
        return "y"

    install_packages(progress, assume_yes=False, ask=answer)

    assert questions == ["Install runc, busybox-static with apt-get now? [y/N] "]
    assert apt == [
        ["update"],
        ["install", "-y", "--no-install-recommends", "runc", "busybox-static"],
    ]


def test_a_no_installs_nothing(
    apt: list[list[str]], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error gives the command to run by hand."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    with pytest.raises(PrerequisiteError, match="run `apt-get install runc busybox-static`"):
        install_packages(progress, assume_yes=False, ask=lambda question: "")

    assert apt == []


def test_without_a_terminal_nothing_is_installed_unasked(
    apt: list[list[str]], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script gets an error that names the packages and ``--yes``."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)

    with pytest.raises(PrerequisiteError, match=r"missing: runc, busybox-static; .* or give --yes"):
        install_packages(progress, assume_yes=False)

    assert apt == []


@pytest.mark.parametrize(
    ("name", "value", "yes"), [("CI", "true", False), ("YES", "1", False), ("OTHER", "1", True)]
)
def test_ci_and_yes_install_without_asking(
    apt: list[list[str]],
    progress: Progress,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    yes: bool,
) -> None:
    """A set CI, YES=1 or ``--yes`` is an answer."""
    monkeypatch.setenv(name, value)

    install_packages(progress, assume_yes=yes, ask=pytest.fail)

    assert len(apt) == 2


def test_nothing_is_asked_when_nothing_is_missing(apt: list[list[str]], progress: Progress) -> None:
    """A complete machine sees no package manager."""
    apt.append(["install"])

    install_packages(progress, assume_yes=False, ask=pytest.fail)

    assert apt == [["install"]]


def test_a_static_program_is_told_from_a_dynamic_one(tmp_path: Path) -> None:
    """Images hold no shared libraries, so a dynamic busybox is of no use."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" * 10)

    assert not is_static_elf(Path("/bin/sh"))
    assert not is_static_elf(script)


@pytest.mark.parametrize(
    ("argv", "refused"),
    [
        (("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"), True),
        (("/x/bin/kubelet", "--root-dir=/x/node-1/kubelet"), False),
        (("/bin/sh", "-c", "kubelet"), False),
    ],
)
def test_a_machine_that_is_a_node_already_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], refused: bool
) -> None:
    """A real node's kubelet would lose its device plugin socket to ours."""
    monkeypatch.setattr(prerequisites, "command_line", lambda pid: argv)

    found = prerequisites.problems(tools_dir=tmp_path, base=tmp_path, must_build=False)

    assert any("is a node of another cluster" in problem for problem in found) is refused
