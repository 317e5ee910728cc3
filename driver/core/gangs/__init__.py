# SPDX-License-Identifier: Apache-2.0
"""Gangs: pods that start together, and the all-or-nothing search for nodes and devices. Pure.

`ground` is the cluster under a plan, `kinds` what its nodes are to equal pods, `solver` the search,
`domains` the topology, `jobs` what a group of pods needs. Used by gpudra.driver.core.managed alone.
"""
