# SPDX-License-Identifier: Apache-2.0
"""The threads in which the agent's blocking work runs; set by the entry point.

The loop's own default is a handful of threads, by the number of processors. A driver call that hangs
keeps its thread for ever, so a few cards that hang would keep the checkpoint, and with it every other
claim, from the disk. Threads are made when no other is free, so a well node has few.
"""

from concurrent.futures import ThreadPoolExecutor

# One call hangs for each card at most (the card's lock sees to that), beside a few for the node.
_THREADS = 64


def worker_threads() -> ThreadPoolExecutor:
    """An executor with room for calls that hang."""
    return ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="worker")
