# SPDX-License-Identifier: Apache-2.0
"""Placement: which of the valid nodes and cards a request should take."""
