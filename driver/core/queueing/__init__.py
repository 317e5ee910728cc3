# SPDX-License-Identifier: Apache-2.0
"""Queues: who may use how much of the managed devices, and whose turn it is. Pure.

`QueueTree` reads the Queue objects, `Book` knows who uses what and what may be added, `Order` says
which waiting job is next. Managed mode (gpudra.driver.core.managed) plans with them; their numbers
are shown by ``gpudra queues`` and in the status of the objects.
"""

from gpudra.driver.core.queueing.amounts import NOTHING, Amounts
from gpudra.driver.core.queueing.book import Book, QueueView, Verdict
from gpudra.driver.core.queueing.charges import DeviceCost, capacity_of, pool_costs
from gpudra.driver.core.queueing.order import Order, Waiting, order
from gpudra.driver.core.queueing.tree import Problem, QueueTree

__all__ = [
    "NOTHING",
    "Amounts",
    "Book",
    "DeviceCost",
    "Order",
    "Problem",
    "QueueTree",
    "QueueView",
    "Verdict",
    "Waiting",
    "capacity_of",
    "order",
    "pool_costs",
]
