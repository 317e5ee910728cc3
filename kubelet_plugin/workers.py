# SPDX-License-Identifier: Apache-2.0
"""The threads in which the agent's blocking work runs; set by the composition root.

The loop's own default is a handful of threads, by the number of processors. A driver call that hangs
keeps its thread for ever, so a few cards that hang would keep the checkpoint, and with it every other
claim, from the disk. Threads are made when no other is free, so a well node has few.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

# One call hangs for each card at most (the card's lock sees to that), beside a few for the node.
_THREADS = 64


def use_many_threads() -> None:
    """For the running loop, from now on."""
    pool = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="worker")
    asyncio.get_running_loop().set_default_executor(pool)
