# SPDX-License-Identifier: Apache-2.0
"""What the Makefile runs."""
