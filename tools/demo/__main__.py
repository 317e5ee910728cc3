# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.demo``; the last line is ``demo: real-cluster``, ``demo: fallback`` or ``demo: failed``."""

import argparse
import asyncio
import os
import sys

from gpudra.api.errors import GpudraError
from tools.demo import story
from tools.demo.local import LocalCluster, obstacles
from tools.demo.standin import StandIn
from tools.demo.world import World, say

FAILED = "failed"


def main() -> int:
    """Runs the demo; exit code 0 when it was told to its end where it should be."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--stand-in", action="store_true", help="without a cluster, even where one could run"
    )
    parser.add_argument("--dir", help="folder of another local cluster than the default one")
    args = parser.parse_args()
    missing = [] if args.stand_in else obstacles()
    world = _choose(args.stand_in, missing, args.dir)
    try:
        asyncio.run(_run(world))
    except GpudraError as error:
        say(f"\nFAILED: {error}")
        say(f"demo: {FAILED}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; run it again to go on")
        say(f"demo: {FAILED}")
        return 130
    say()
    for line in world.farewell():
        say(line)
    say(f"demo: {world.outcome}")
    # A green run that showed less than it claims is worse than a red one.
    return 1 if missing and _in_ci() else 0


def _choose(stand_in: bool, missing: list[str], directory: str | None) -> World:
    if not (stand_in or missing):
        return LocalCluster(directory)
    if missing:
        say("This machine cannot run the local cluster:")
        for problem in missing:
            say(f"  - {problem}")
    say("The same story is told WITHOUT Kubernetes: gpudra's node agent is real, and so are its")
    say("sockets, slices, claims and CDI files; API server, scheduler and kubelet are stand-ins.")
    return StandIn()


async def _run(world: World) -> None:
    try:
        await world.start()
        await story.tell(world)
    finally:
        await world.stop()


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


if __name__ == "__main__":
    sys.exit(main())
