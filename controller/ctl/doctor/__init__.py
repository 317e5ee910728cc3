# SPDX-License-Identifier: Apache-2.0
"""``gpudra doctor``: is everything there that claims for GPUs need, and if not, how to mend it."""
