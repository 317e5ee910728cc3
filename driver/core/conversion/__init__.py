# SPDX-License-Identifier: Apache-2.0
"""Requests written for HAMi, KAI Scheduler, Volcano or a device plugin, read as claims.

Pure. `pods` reads one pod, `workloads` the pod templates of any object, `templates` makes the
ResourceClaimTemplates. Used by ``gpudra convert`` for files and by gpudra.controller.conversion for
live pods; what the admission policy of the chart does in CEL is the same and is tested to be.
"""
