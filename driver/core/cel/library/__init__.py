# SPDX-License-Identifier: Apache-2.0
"""The functions that Kubernetes 1.37 offers to device selectors, one module per concern.

Each module exports ``FUNCTIONS``; ``environment`` merges them into one table.
"""
