# SPDX-License-Identifier: Apache-2.0
"""The cluster side of gpudra, and its command line in controller.ctl."""
