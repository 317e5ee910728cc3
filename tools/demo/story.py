# SPDX-License-Identifier: Apache-2.0
"""The story of the demo: the same in both worlds, checked while it is told."""

from collections.abc import Sequence
from pathlib import Path

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.devices import DeviceView, device_views
from gpudra.controller.ctl.printers import format_table
from tools.demo.world import DRIVER, EXAMPLES, GPUS, NAMESPACE, ContainerView, World, say

ONE_GPU = EXAMPLES / "one-gpu" / "example.yaml"
SAME_SWITCH = EXAMPLES / "same-pcie-switch" / "example.yaml"
ANY_TWO = EXAMPLES / "same-pcie-switch" / "without-constraint.yaml"
STEPS = 5


class DemoError(GpudraError):
    """Something was not as the story says."""


async def tell(world: World) -> None:
    """Runs the story.

    Raises:
        DemoError: what was seen is not what should be seen.
        GpudraError: the world failed.
    """
    await _publish(world)
    await _one_gpu(world)
    any_two = await _pair(
        world, 3, "two GPUs, no constraint: the scheduler takes the first free ones", ANY_TWO
    )
    await world.remove(ANY_TWO)
    same = await _pair(world, 4, "two GPUs on the same PCIe switch", SAME_SWITCH)
    _compare(any_two, same)


async def _publish(world: World) -> None:
    _step(1, "what the node publishes")
    slices = await world.slices()
    found = sum(len(one.spec.devices) for one in slices)
    _check(found >= GPUS, f"{found} GPUs are published, expected at least {GPUS}")
    await world.show_slices()


async def _one_gpu(world: World) -> None:
    _step(2, "a pod claims one GPU")
    pod = await world.run_pod(ONE_GPU)
    say()
    say((await world.describe_claim(pod)).rstrip())
    view = await _show_container(world, pod)
    held = await _held_by(world, pod)
    _check(len(held) == 1, f"{pod} holds {len(held)} GPUs, expected 1")
    allocated = frozenset(device.attribute("uuid") for device in held)
    _check(view.uuids == allocated, f"the container sees {view.uuids}, allocated is {allocated}")


async def _pair(world: World, number: int, title: str, file: Path) -> list[DeviceView]:
    _step(number, title)
    pod = await world.run_pod(file)
    view = await _show_container(world, pod)
    held = await _held_by(world, pod)
    _check(len(held) == 2, f"{pod} holds {len(held)} GPUs, expected 2")
    allocated = frozenset(device.attribute("uuid") for device in held)
    _check(view.uuids == allocated, f"the container sees {view.uuids}, allocated is {allocated}")
    return held


async def _show_container(world: World, pod: str) -> ContainerView:
    view = await world.container(pod)
    say(f"\nwhat the container of {pod} finds:")
    for name, value in sorted(view.environment.items()):
        say(f"  {name}={value}")
    say(f"  /dev: {' '.join(view.devices)}")
    return view


async def _held_by(world: World, pod: str) -> list[DeviceView]:
    views = device_views(await world.slices(), await world.claims(), DRIVER)
    return [
        view
        for view in views
        if any(
            one.claim.startswith(f"{NAMESPACE}/") and one.consumers == (pod,)
            for one in view.holders
        )
    ]


def _compare(any_two: Sequence[DeviceView], same: Sequence[DeviceView]) -> None:
    _step(5, "side by side, while one GPU of the first switch was held by the pod one-gpu")
    rows = [
        (title, ", ".join(view.name for view in held), ", ".join(_switches(held)))
        for title, held in (("no constraint", any_two), ("matchAttribute pcieSwitch", same))
    ]
    say(format_table(("REQUEST", "GPUS", "PCIE SWITCH"), rows).rstrip())
    crossing = "two GPUs without the constraint share a switch, expected two different ones"
    _check(len(set(_switches(any_two))) == 2, crossing)
    _check(len(set(_switches(same))) == 1, "two GPUs with the constraint are on two switches")


def _switches(held: Sequence[DeviceView]) -> list[str]:
    return [str(view.attribute("pcieSwitch")) for view in held]


def _step(number: int, title: str) -> None:
    say(f"\n==> {number}/{STEPS} {title}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoError(otherwise)
