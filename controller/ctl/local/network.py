# SPDX-License-Identifier: Apache-2.0
"""Pod network of the nodes, ports of the components, and removal of what they leave; no iptables.

Every node has a point-to-point network of its own. Pods reach each other and the host; without
masquerading they do not reach the world, which also means that no firewall rule is ever made.
"""

import errno
import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local.layout import Layout, NodeLayout

FIRST_PORT = 21000
LAST_PORT = 32000
"""Below the range that the kernel gives to outgoing connections (from 32768)."""

_ROOM = 1000
"""Ports that are left to search for the cluster that begins last."""

IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
CNI_CACHE = Path("/var/lib/cni/results")
INTERFACES = Path("/sys/class/net")


class PortError(GpudraError):
    """No port of this machine is free."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def free_ports(taken: Iterable[int] = (), first: int = FIRST_PORT) -> Iterator[int]:
    """Ports that are free on all addresses now and not ``taken``, rising from ``first``.

    Raises:
        PortError: at the end of the range.
    """
    excluded = set(taken)
    for port in range(first, LAST_PORT):
        if port not in excluded and is_free(port, ""):
            yield port
    raise PortError(f"no free port between {first} and {LAST_PORT}")


def first_port(identity: str) -> int:
    """Where the search for a cluster's ports begins.

    Another place for each cluster: a port is chosen minutes before a pod listens on it, and two
    clusters that start at once must not choose the same.

    Args:
        identity: of the layout, hex digits.
    """
    return FIRST_PORT + int(identity, 16) % (LAST_PORT - FIRST_PORT - _ROOM)


def pod_subnet(port: int) -> str:
    """The pods' /24 of the node whose kubelet was given ``port``.

    Ports are unique among the clusters of a machine, so the networks are too: two pods of one
    address would end up in each other's routes.
    """
    second, third = divmod((port - FIRST_PORT) % (LAST_PORT - FIRST_PORT), 256)
    return f"10.{100 + second}.{third}.0/24"


def network_name(layout: Layout, node: str) -> str:
    """The CNI network of a node, unique on the machine."""
    return f"gpudra-{layout.identity}-{node}"


def cni_config(layout: Layout, node: NodeLayout, subnet: str) -> str:
    """The content of the node's ``.conflist``."""
    ipam: dict[str, Any] = {
        "type": "host-local",
        "dataDir": str(node.base / "ipam"),
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    document = {
        "cniVersion": "1.0.0",
        "name": network_name(layout, node.name),
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}],
    }
    return json.dumps(document, indent=2) + "\n"


def remove_cni_cache(layout: Layout, node: str, cache: Path = CNI_CACHE) -> None:
    """Remove the results that CNI keeps outside our folder for pods that were killed."""
    for file in cache.glob(f"{network_name(layout, node)}-*"):
        file.unlink(missing_ok=True)


def ip_forward() -> str:
    """The kernel's setting; the ptp plugin turns it on."""
    return IP_FORWARD.read_text().strip()


def restore_ip_forward(before: str) -> None:
    """Put ``net.ipv4.ip_forward`` back, unless some pod interface still needs it."""
    if before == "0" and ip_forward() == "1" and not any(INTERFACES.glob("veth*")):
        IP_FORWARD.write_text("0\n")
