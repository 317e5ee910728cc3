# SPDX-License-Identifier: Apache-2.0
"""Who has what of the cluster's cards, what is left, and why claims wait: the figures of metrics.

Pure. ``facts`` keeps of API objects what is counted, ``pools`` counts one pool, ``pending`` says
why a claim waits. gpudra.controller.accounting feeds it by watching.
"""
