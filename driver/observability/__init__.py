# SPDX-License-Identifier: Apache-2.0
"""Logs, metrics and events, each with its words kept in one table."""
