# SPDX-License-Identifier: Apache-2.0
"""Where the local cluster keeps its files; used by every module of this package.

One folder holds everything that a cluster leaves on disk, so that removing the folder after
``down`` removes the cluster. The Go binaries lie apart, in ``<root>/bin``, and are shared by all
clusters of a checkout.
"""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import InputError

DIR_VARIABLE = "GPUDRA_LOCAL_DIR"

SHORT_DIR_LIMIT = 40
"""Longest state folder, in bytes, whose sockets fit into a socket address (107 bytes).

The longest name below it is ``/node-1/kubelet/plugins_registry/`` and the socket of a plugin,
which is left 34 bytes; a longer folder is reached through a short link below ``/run``.
"""

RUN_DIR = Path("/run/gpudra")


def checkout_dir() -> Path:
    """The source tree, which holds the Go tool modules and the manifests.

    Raises:
        InputError: gpudra was installed without its source tree.
    """
    starts = (Path(__file__).resolve().parents[3], Path.cwd())
    for start in starts:
        if (start / "deploy" / "local" / "tools").is_dir():
            return start
    raise InputError(
        "the local cluster is built from a checkout of gpudra, and there is none here",
        hint="clone the repository and run `make cluster-up` in it",
    )


def root_dir() -> Path:
    """Folder of the binaries and of the default cluster: ``$GPUDRA_LOCAL_DIR`` or ``.local``."""
    configured = os.environ.get(DIR_VARIABLE)
    return Path(configured).absolute() if configured else checkout_dir() / ".local"


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Files of one real node. ``base`` may be a short link to the folder of the node."""

    name: str
    base: Path

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's ``--root-dir``; has ``plugins/`` and ``plugins_registry/`` below it."""
        return self.base / "kubelet"

    @property
    def cdi_dir(self) -> Path:
        """Where this node's containerd looks for CDI files."""
        return self.base / "cdi"

    @property
    def containerd_socket(self) -> Path:
        """The CRI endpoint, also what ``ctr -a`` wants."""
        return self.base / "containerd.sock"

    @property
    def agent_dir(self) -> Path:
        """State of our kubelet plugin on this node."""
        return self.base / "agent"


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of one cluster below the absolute folder ``base``; binaries in ``bin_dir``."""

    base: Path
    bin_dir: Path

    @property
    def identity(self) -> str:
        """Eight hex digits that tell this cluster from others on the machine."""
        return hashlib.sha256(os.fsencode(self.base)).hexdigest()[:8]

    @property
    def short_base(self) -> Path:
        """``base``, or the link to it when sockets below ``base`` would have too long a name."""
        if len(os.fsencode(self.base)) <= SHORT_DIR_LIMIT:
            return self.base
        return RUN_DIR / self.identity

    @property
    def state_file(self) -> Path:
        """What is remembered between calls; see `gpudra.controller.ctl.local.state`."""
        return self.base / "state.json"

    @property
    def lock_file(self) -> Path:
        """Held while ``up`` or ``down`` runs."""
        return self.base / "lock"

    @property
    def pki_dir(self) -> Path:
        """Certificates and keys."""
        return self.base / "pki"

    @property
    def config_dir(self) -> Path:
        """Configuration files and kubeconfigs of the components."""
        return self.base / "config"

    @property
    def log_dir(self) -> Path:
        """One log a component."""
        return self.base / "logs"

    @property
    def pid_dir(self) -> Path:
        """One record a running process."""
        return self.base / "pids"

    @property
    def etcd_dir(self) -> Path:
        """The database."""
        return self.base / "etcd"

    @property
    def images_dir(self) -> Path:
        """Image archives that every node imports."""
        return self.base / "images"

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.base / "admin.kubeconfig"

    def node(self, name: str) -> NodeLayout:
        """Files of the node ``name``."""
        return NodeLayout(name=name, base=self.short_base / name)

    def binary(self, name: str) -> Path:
        """A built program, for example ``kubectl``."""
        return self.bin_dir / name

    def make_dirs(self) -> None:
        """Create the folders, private to root, and the short link where one is needed."""
        self.base.mkdir(parents=True, exist_ok=True)
        for path in (
            self.pki_dir,
            self.config_dir,
            self.log_dir,
            self.pid_dir,
            self.etcd_dir,
            self.images_dir,
        ):
            path.mkdir(mode=0o700, exist_ok=True)
        if self.short_base != self.base and not self._has_link():
            self.remove_link()
            RUN_DIR.mkdir(parents=True, exist_ok=True)
            self.short_base.symlink_to(self.base)

    def _has_link(self) -> bool:
        return self.short_base.is_symlink() and self.short_base.readlink() == self.base

    def remove_link(self) -> None:
        """Remove the short link, if there is one."""
        if self.short_base != self.base and self.short_base.is_symlink():
            self.short_base.unlink()
            with contextlib.suppress(OSError):  # other clusters have theirs there
                RUN_DIR.rmdir()


def layout_for(directory: str | None) -> Layout:
    """The layout for ``--dir``, or that of the default cluster when it is None."""
    root = root_dir()
    base = Path(directory).absolute() if directory else root
    return Layout(base=base, bin_dir=root / "bin")
