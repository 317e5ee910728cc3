# SPDX-License-Identifier: Apache-2.0
"""Build the cluster's Go programs from the tool modules in ``deploy/local/tools``; called by ``up``.

Every module has its own go.mod and go.sum, which are all that a build depends on; their hash,
with the arguments of the build, is kept beside the binaries, so that a second build is skipped.
A build that was killed goes on from Go's build cache.
"""

import hashlib
import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import GpudraError, InputError
from gpudra.controller.ctl.local.progress import Progress


class BuildError(GpudraError):
    """``go build`` failed."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool module.

    Attributes:
        name: folder below ``deploy/local/tools``.
        module: the module whose version in go.mod is the version of the programs.
        programs: package path by name of the binary.
        version_variables: Go variables that the linker sets; ``{version}``, ``{major}`` and
            ``{minor}`` stand for the parts of the version.
        tags: Go build tags.
        minutes: how long a first build takes on two cores, for the person who waits.
    """

    name: str
    module: str
    programs: dict[str, str]
    version_variables: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    minutes: int = 1


_KUBERNETES_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")

TOOLS: tuple[Tool, ...] = (
    Tool(
        name="etcd",
        module="go.etcd.io/etcd/server/v3",
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
    ),
    Tool(
        name="containerd",
        module="github.com/containerd/containerd/v2",
        programs={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        version_variables=("github.com/containerd/containerd/v2/version.Version={version}",),
        tags=("no_btrfs", "no_devmapper", "no_zfs"),
        minutes=2,
    ),
    Tool(
        name="kubernetes",
        module="k8s.io/kubernetes",
        programs={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubectl",
                "kubelet",
            )
        },
        # Built as a dependency the programs would call themselves v0.0.0.
        version_variables=tuple(
            f"{package}.{variable}"
            for package in _KUBERNETES_VERSION_PACKAGES
            for variable in (
                "gitVersion={version}",
                "gitMajor={major}",
                "gitMinor={minor}",
                "gitTreeState=clean",
            )
        ),
        minutes=8,
    ),
)

HELM = Tool(
    name="helm",
    module="helm.sh/helm/v4",
    programs={"helm": "helm.sh/helm/v4/cmd/helm"},
    minutes=4,
)
"""Beside `TOOLS`: only what installs the chart needs it."""


class Builder:
    """Builds one tool after the other.

    Args:
        tools_dir: ``deploy/local/tools`` of the checkout.
        bin_dir: where the binaries and stamps go.
        go: the Go command.
    """

    def __init__(self, tools_dir: Path, bin_dir: Path, go: str = "go") -> None:
        self._tools_dir = tools_dir
        self._bin_dir = bin_dir
        self._go = go

    def version(self, tool: Tool) -> str:
        """Version of the tool's main module as go.mod pins it, for example ``v1.37.2``."""
        text = (self._tools_dir / tool.name / "go.mod").read_text()
        match = re.search(
            rf"^(?:require\s+|\s+){re.escape(tool.module)}\s+(v\S+)", text, re.MULTILINE
        )
        if match is None:
            raise InputError(
                f"does not require {tool.module}", file=str(self._tools_dir / tool.name / "go.mod")
            )
        return match.group(1)

    def stamp(self, tool: Tool) -> str:
        """Hash of everything that the binaries are made from."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum"):
            digest.update((self._tools_dir / tool.name / name).read_bytes())
        digest.update("\0".join([*self._arguments(tool), *tool.programs]).encode())
        return digest.hexdigest()

    def is_built(self, tool: Tool) -> bool:
        """Whether the binaries are there and were made from these files."""
        stamp = self._stamp_file(tool)
        return (
            stamp.is_file()
            and stamp.read_text() == self.stamp(tool)
            and all((self._bin_dir / program).is_file() for program in tool.programs)
        )

    def build(self, tool: Tool, progress: Progress) -> None:
        """Build the tool's programs, unless they are there already.

        Raises:
            BuildError: with the end of Go's output.
        """
        version = self.version(tool)
        if self.is_built(tool):
            progress.step(f"{tool.name} {version} is built")
            return
        progress.step(f"building {tool.name} {version}")
        self._bin_dir.mkdir(parents=True, exist_ok=True)
        # Binaries appear under their names only when whole; running ones are replaced, not rewritten.
        staging = self._bin_dir / f".{tool.name}.partial"
        staging.mkdir(exist_ok=True)
        progress.note(f"about {tool.minutes} min on two cores the first time")
        self._run(tool, ["mod", "download"], progress, "fetching the Go modules")
        counter = self._count_stale(tool, progress)
        for number, (program, package) in enumerate(tool.programs.items(), start=1):
            command = ["build", "-v", *self._arguments(tool), "-o", str(staging / program), package]
            what = f"{program} ({number} of {len(tool.programs)})"
            self._run(tool, command, progress, what, counter)
        for program in tool.programs:
            (staging / program).replace(self._bin_dir / program)
        shutil.rmtree(staging)
        self._stamp_file(tool).write_text(self.stamp(tool))

    def _stamp_file(self, tool: Tool) -> Path:
        return self._bin_dir / f".{tool.name}.stamp"

    def _arguments(self, tool: Tool) -> list[str]:
        version = self.version(tool)
        major, minor, _ = version.removeprefix("v").split(".", 2)
        variables = [
            variable.format(version=version, major=major, minor=minor)
            for variable in tool.version_variables
        ]
        flags = " ".join(["-s", "-w", *(f"-X {variable}" for variable in variables)])
        tags = [f"-tags={','.join(tool.tags)}"] if tool.tags else []
        return ["-buildvcs=false", "-ldflags", flags, *tags]

    def _count_stale(self, tool: Tool, progress: Progress) -> "_Counter":
        """Count the packages that Go still has to compile, before the programs themselves."""
        progress.tick("looking what is to be compiled")
        tags = [f"-tags={','.join(tool.tags)}"] if tool.tags else []
        template = '{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{end}}'
        command = [self._go, "list", "-deps", "-f", template, *tags, *tool.programs.values()]
        listed = subprocess.run(
            command,
            cwd=self._tools_dir / tool.name,
            env=_go_env(),
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode != 0:
            raise BuildError(f"go list failed:\n{listed.stderr.strip()[-2000:]}", obj=tool.name)
        return _Counter(total=len(listed.stdout.split()))

    def _run(
        self,
        tool: Tool,
        arguments: Sequence[str],
        progress: Progress,
        what: str,
        counter: "_Counter | None" = None,
    ) -> None:
        """Run Go, reporting while it is silent."""
        process = subprocess.Popen(
            [self._go, *arguments],
            cwd=self._tools_dir / tool.name,
            env=_go_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        tail: list[str] = []
        try:
            for line in _Lines(process):
                if line:
                    tail = [*tail[-29:], line]
                    if counter is not None:
                        counter.count(line)
                progress.tick(f"{what}{counter or ''}")
        except BaseException:
            process.terminate()
            raise
        if process.wait() != 0:
            raise BuildError(
                f"go {arguments[0]} failed:\n" + "\n".join(tail),
                obj=f"{tool.name} {what}",
                hint="run the command again: what is compiled already is kept",
            )


@dataclass(slots=True)
class _Counter:
    """How many packages are compiled, of how many."""

    total: int
    done: int = 0

    def count(self, line: str) -> None:
        """Count a line of ``go build -v`` if it names a package."""
        if re.fullmatch(r"[\w.~/+-]+", line):
            self.done += 1

    def __str__(self) -> str:
        if self.done >= self.total:
            return ", linking"
        return f", {self.done} of {self.total} packages"


class _Lines:
    """Lines of a process's output, and an empty text whenever a second passed without one.

    Read in a thread, as a pipe cannot be read with a time-out.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._process = process
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        try:
            line = self._queue.get(timeout=1)
        except queue.Empty:
            return ""
        if line is None:
            raise StopIteration
        return line


def _go_env() -> dict[str, str]:
    """Static programs, no C compiler needed, a go.work above the checkout ignored."""
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
