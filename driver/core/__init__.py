# SPDX-License-Identifier: Apache-2.0
"""Pure rules: inventory, devices, slices, CEL, allocation, prepare plans. No I/O, no clock."""
