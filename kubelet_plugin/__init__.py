# SPDX-License-Identifier: Apache-2.0
"""The node agent: discover, publish, prepare, unprepare."""
