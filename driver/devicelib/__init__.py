# SPDX-License-Identifier: Apache-2.0
"""Edge to hardware: simulated boards today, NVML and other vendors beside it."""
