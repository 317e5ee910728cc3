# SPDX-License-Identifier: Apache-2.0
"""Managed mode's edge: watches the cluster, asks the pure core for a plan, carries the plan out."""
