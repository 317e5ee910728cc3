# SPDX-License-Identifier: Apache-2.0
"""The operation id: on every line of one operation, and only there."""

import asyncio

from gpudra.driver.observability.logging import bound, current_op_id, get_logger, operation
from tests.support.logs import captured_logs

log = get_logger("test")


def test_every_line_of_an_operation_carries_its_id() -> None:
    """Lines inside carry the same 8 hex digits and the operation's name; lines outside none."""
    with captured_logs() as logs:
        log.info("before")
        with operation("prepare", claim="default/a") as op_id:
            log.info("one")
            log.info("two")
        log.info("after")
        before, one, two, after = logs.lines
        assert one["op"] == two["op"] == op_id
        assert len(op_id) == 8
        assert int(op_id, 16) >= 0
        assert one["operation"] == "prepare"
        assert one["claim"] == "default/a"
        assert "op" not in before
        assert "op" not in after
        assert "claim" not in after


def test_two_operations_have_different_ids() -> None:
    """An id is never used twice in a row."""
    with operation("prepare") as first:
        pass
    with operation("prepare") as second:
        pass
    assert first != second


def test_a_nested_operation_keeps_the_id() -> None:
    """The inner part of a story is found under the same id; its own keys end with it."""
    with captured_logs() as logs:
        with operation("prepare", claim="default/a") as outer:
            with operation("write checkpoint", device="gpu-1") as inner:
                log.info("inside")
            log.info("outside")
        assert inner == outer
        inside, outside = logs.lines
        assert (inside["operation"], inside["device"], inside["claim"]) == (
            "write checkpoint",
            "gpu-1",
            "default/a",
        )
        assert outside["operation"] == "prepare"
        assert "device" not in outside


async def test_tasks_of_an_operation_inherit_the_id_and_others_do_not_see_it() -> None:
    """Two operations that run at once never mix their ids."""

    async def step(ready: asyncio.Event) -> str:
        await ready.wait()
        return current_op_id()

    async def run(name: str, ready: asyncio.Event) -> tuple[str, str]:
        with operation(name) as op_id:
            return op_id, await asyncio.create_task(step(ready))

    ready = asyncio.Event()
    tasks = [asyncio.create_task(run(name, ready)) for name in ("a", "b")]
    ready.set()
    (first, first_seen), (second, second_seen) = await asyncio.gather(*tasks)
    assert (first, second) == (first_seen, second_seen)
    assert first != second
    assert current_op_id() == ""


def test_bound_keys_end_with_their_block() -> None:
    """Keys of one claim in a batch are not on the lines of the next."""
    with captured_logs() as logs:
        with operation("prepare"):
            with bound(claim="default/a"):
                log.info("first")
            log.info("second")
        assert logs.lines[0]["claim"] == "default/a"
        assert "claim" not in logs.lines[1]


def test_an_id_from_elsewhere_is_kept() -> None:
    """A given id is used as it is."""
    with operation("prepare", op_id="0badcafe") as op_id:
        assert op_id == current_op_id() == "0badcafe"
