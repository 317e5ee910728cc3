# SPDX-License-Identifier: Apache-2.0
"""Arguments of ``gpudra local``, and what each sub-command prints; called by ``gpudra``."""

import argparse
import sys

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local.layout import DIR_VARIABLE, Layout, layout_for
from gpudra.controller.ctl.local.state import AS_PODS, AS_PROCESSES

EXIT_OK = 0
EXIT_ERROR = 1

EPILOG = """\
examples:
  gpudra local up                        one real node with 8 simulated H100
  gpudra local up --nodes 2              two real nodes
  gpudra local up --fake-nodes 200       beside it, 200 nodes that are only objects
  gpudra local up --no-agent             Kubernetes alone, without gpudra
  gpudra local up --agent-as processes   the plugin as a process, not as a pod of the chart
  gpudra local status -o json            ports, paths and health for programs
  gpudra local down --purge              end it and forget it
  export KUBECONFIG=.local/admin.kubeconfig PATH=$PWD/.local/bin:$PATH
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``up``, ``status`` and ``down`` to the parser of ``gpudra local``."""
    parser.description = (
        "A real Kubernetes on this machine, built from source, without Docker. Needs root and Go."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="local_command", required=True, metavar="up|status|down")
    _add_up(
        commands.add_parser(
            "up", help="start the cluster, or make it as asked; may be run again at any time"
        )
    )
    status = commands.add_parser(
        "status", help="show every component; exit code 0 only if all are healthy"
    )
    status.add_argument(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="for people or for programs",
    )
    down = commands.add_parser("down", help="stop the cluster and leave nothing of it running")
    down.add_argument(
        "--purge", action="store_true", help="also delete its files; the built programs stay"
    )
    for command in commands.choices.values():
        command.add_argument(
            "--dir",
            metavar="DIR",
            help=f"folder of the cluster (default: ${DIR_VARIABLE}, else .local in the checkout)",
        )


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="real nodes, each with containerd and kubelet (default 1)",
    )
    parser.add_argument(
        "--fake-nodes", type=int, metavar="N", help="nodes that are only objects (default 0)"
    )
    parser.add_argument(
        "--hardware",
        metavar="PROFILE|FILE",
        help="what the plugin simulates (default dgx-h100-8x80)",
    )
    parser.add_argument("--no-agent", action="store_true", help="do not run gpudra")
    parser.add_argument(
        "--agent-as",
        choices=(AS_PODS, AS_PROCESSES),
        help="run gpudra as pods, installed from the chart, or the plugin alone as a process of this "
        "machine for each node, which starts faster and can be killed (default pods)",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="install missing packages without asking (also YES=1, CI=true)",
    )
    parser.add_argument(
        "--api-port",
        type=int,
        metavar="PORT",
        help="port of the API server (default: a free one, kept)",
    )
    parser.add_argument(
        "--feature-gates", metavar="A=true,...", help="beside the defaults, for all components"
    )
    parser.add_argument(
        "--runtime-config",
        metavar="GROUP/VERSION=true,...",
        help="API versions beside the defaults",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out a parsed command; return the exit code."""
    commands = {"up": _up, "status": _status, "down": _down}
    try:
        return commands[args.local_command](layout_for(args.dir), args)
    except GpudraError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except PermissionError as error:
        print(f"error: {error}; the local cluster belongs to root, try sudo -E", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted; run the command again to go on", file=sys.stderr)
        return 130


def _up(layout: Layout, args: argparse.Namespace) -> int:
    from gpudra.controller.ctl.local.plan import Wishes
    from gpudra.controller.ctl.local.up import UpCommand, version_text

    wishes = Wishes(
        nodes=args.nodes,
        fake_nodes=args.fake_nodes,
        hardware=args.hardware,
        agent=not args.no_agent,
        agent_as=args.agent_as,
        feature_gates=args.feature_gates,
        runtime_config=args.runtime_config,
        api_port=args.api_port,
    )
    cluster = UpCommand(layout, wishes, assume_yes=args.yes).run()
    print(
        f"Kubernetes {version_text(layout)} is up with {len(cluster.nodes)} real and {cluster.fake_nodes} fake nodes."
    )
    print(f"  export KUBECONFIG={cluster.kubeconfig}")
    print(f"  {cluster.kubectl} get nodes")
    return EXIT_OK


def _status(layout: Layout, args: argparse.Namespace) -> int:
    from gpudra.controller.ctl.local.status import cluster_status

    status = cluster_status(layout)
    if args.output == "json":
        print(status.to_json())
    elif status.state is None:
        print(f"no cluster in {layout.base}; start one with `gpudra local up`")
    else:
        print(status.to_table())
    return EXIT_OK if status.healthy else EXIT_ERROR


def _down(layout: Layout, args: argparse.Namespace) -> int:
    from gpudra.controller.ctl.local.down import down

    stopped = down(layout, purge=args.purge)
    print(f"the cluster in {layout.base} is down" if stopped else f"no cluster in {layout.base}")
    return EXIT_OK
