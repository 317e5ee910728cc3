# SPDX-License-Identifier: Apache-2.0
"""Long differential runs, apart from the ordinary tests: ``make fuzz``."""
