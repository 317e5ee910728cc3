# SPDX-License-Identifier: Apache-2.0
"""A day in the life of two teams: whole cards held apart, against shares, queues and gangs.

The same workload, made of the public openb trace, runs in two worlds: one that gives each team half
of the nodes and every job whole cards, and managed mode. ``python -m tools.twoteams`` measures both
in the simulator; ``make demo-managed`` shows the same in small on a real cluster.

Utilisation is what jobs need of GPU while they run, over what there is::

    sum over jobs of (need in cards x seconds run inside the day) / (cards x seconds of the day)

A job that holds a whole card and needs a fifth of one counts a fifth. Nothing asserts the figures.
"""
