# SPDX-License-Identifier: Apache-2.0
"""Words and shapes shared by every part of gpudra; imports nothing of ours."""
