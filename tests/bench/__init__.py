# SPDX-License-Identifier: Apache-2.0
"""Benches: they print figures and ratios, and assert none."""
