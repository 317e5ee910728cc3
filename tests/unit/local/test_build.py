# SPDX-License-Identifier: Apache-2.0
"""Building the Go programs, with a Go that is a shell script."""

import io
from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.local.build import TOOLS, Builder, BuildError, Tool
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.controller.ctl.local.progress import Progress

TOOL = Tool(
    name="thing",
    module="example.org/thing",
    programs={"one": "example.org/thing/cmd/one", "two": "example.org/thing/cmd/two"},
    version_variables=("example.org/version.V={version}", "example.org/version.Minor={minor}"),
    tags=("no_x",),
)

FAKE_GO = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
list) echo a/b; echo c/d ;;
build)
    [ -e "{fail}" ] && {{ echo "cmd/one.go:1: undefined: x" >&2; exit 1; }}
    echo a/b >&2
    while [ "$1" != -o ]; do shift; done
    echo binary > "$2" ;;
esac
"""


class Workshop:
    """A tool module, a Go to build it with, and what that Go was asked."""

    def __init__(self, base: Path) -> None:
        module = base / "tools" / "thing"
        module.mkdir(parents=True)
        (module / "go.mod").write_text("module x\n\nrequire example.org/thing v1.37.2\n")
        (module / "go.sum").write_text("sum\n")
        self.go_sum = module / "go.sum"
        self.bin_dir = base / "bin"
        self.log, self.fail = base / "log", base / "fail"
        go = base / "go"
        go.write_text(FAKE_GO.format(log=self.log, fail=self.fail))
        go.chmod(0o755)
        self.builder = Builder(base / "tools", self.bin_dir, str(go))
        self.out = io.StringIO()

    def build(self) -> None:
        """Build the tool."""
        self.builder.build(TOOL, Progress(1, self.out))

    def calls(self) -> list[str]:
        """Arguments of Go's runs so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """A fresh one."""
    return Workshop(tmp_path)


def test_every_program_is_built_with_version_and_tags(workshop: Workshop) -> None:
    """The linker is told the version of go.mod, in whole and in parts."""
    workshop.build()

    builds = [call for call in workshop.calls() if call.startswith("build")]
    assert len(builds) == 2
    assert all(
        "-tags=no_x" in call and "-X example.org/version.V=v1.37.2" in call for call in builds
    )
    assert all("-X example.org/version.Minor=37" in call for call in builds)
    assert {path.name for path in workshop.bin_dir.iterdir()} == {"one", "two", ".thing.stamp"}


def test_a_second_build_is_skipped(workshop: Workshop) -> None:
    """Unchanged go.mod and go.sum mean that Go is not even asked."""
    workshop.build()
    before = workshop.calls()

    workshop.build()

    assert workshop.calls() == before
    assert "thing v1.37.2 is built" in workshop.out.getvalue()


@pytest.mark.parametrize("spoil", ["sum", "binary"])
def test_a_changed_module_or_a_lost_binary_is_built_anew(workshop: Workshop, spoil: str) -> None:
    """The stamp covers the module's files; a binary that is gone counts as not built."""
    workshop.build()

    if spoil == "sum":
        workshop.go_sum.write_text("other\n")
    else:
        (workshop.bin_dir / "two").unlink()

    assert not workshop.builder.is_built(TOOL)


def test_a_failed_build_shows_what_go_said_and_keeps_the_old_programs(workshop: Workshop) -> None:
    """The compiler's message is in the error, and no half of a build is taken for a whole."""
    workshop.fail.touch()

    with pytest.raises(
        BuildError, match=r"(?s)thing one \(1 of 2\): go build failed:.*undefined: x"
    ):
        workshop.build()

    assert not workshop.builder.is_built(TOOL)
    workshop.fail.unlink()
    workshop.build()
    assert workshop.builder.is_built(TOOL)


def test_a_module_that_does_not_pin_the_tool_is_refused(workshop: Workshop) -> None:
    """The error names the file and the module."""
    (workshop.go_sum.parent / "go.mod").write_text("module x\n")

    with pytest.raises(InputError, match=r"go\.mod.*does not require example\.org/thing"):
        workshop.builder.version(TOOL)


def test_the_pinned_versions_are_those_of_the_documentation() -> None:
    """Kubernetes 1.37.2, etcd 3.6.16 and containerd 2.4.2, read from the real modules."""
    builder = Builder(checkout_dir() / "deploy" / "local" / "tools", Path("/nowhere"))

    assert {tool.name: builder.version(tool) for tool in TOOLS} == {
        "etcd": "v3.6.16",
        "containerd": "v2.4.2",
        "kubernetes": "v1.37.2",
    }


def test_every_program_is_a_tool_of_its_module() -> None:
    """go.mod lists what is built, so that `go mod tidy` keeps its dependencies."""
    for tool in TOOLS:
        text = (checkout_dir() / "deploy" / "local" / "tools" / tool.name / "go.mod").read_text()
        assert all(package in text for package in tool.programs.values())
