# SPDX-License-Identifier: Apache-2.0
"""Edge to the Kubernetes API: client, reflector, store, work queue, leader election."""
