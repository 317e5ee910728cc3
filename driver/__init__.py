# SPDX-License-Identifier: Apache-2.0
"""The driver: a pure core and the edges around it."""
