# SPDX-License-Identifier: Apache-2.0
"""Long simulations of managed mode, and the replay of one seed."""
