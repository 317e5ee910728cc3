# SPDX-License-Identifier: Apache-2.0
"""A pretended NVML in C, and the machine around it."""
