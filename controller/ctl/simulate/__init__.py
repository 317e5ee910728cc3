# SPDX-License-Identifier: Apache-2.0
"""``gpudra simulate``: replays a trace on a cluster and says how much of it a policy can use."""
