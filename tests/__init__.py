# SPDX-License-Identifier: Apache-2.0
"""All tests of gpudra."""
