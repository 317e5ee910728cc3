# SPDX-License-Identifier: Apache-2.0
"""Threads for blocking work."""

import asyncio
import threading

from gpudra.kubelet_plugin.workers import worker_threads


async def test_calls_that_hang_on_every_card_leave_a_thread_for_others() -> None:
    """Sixteen cards, each with a hanging call, and the work of the node itself."""
    asyncio.get_running_loop().set_default_executor(worker_threads())
    gate = threading.Event()
    hung = [asyncio.create_task(asyncio.to_thread(gate.wait, 60)) for _ in range(16 + 8)]
    assert await asyncio.to_thread(lambda: "done") == "done"
    assert not any(task.done() for task in hung)
    gate.set()
    assert all(await asyncio.gather(*hung))
