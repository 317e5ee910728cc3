# SPDX-License-Identifier: Apache-2.0
"""Keeps one pool of ResourceSlices in the API as it should be."""
