# SPDX-License-Identifier: Apache-2.0
"""Messages of the kubelet's two plugin APIs, generated: never edited by hand.

Change a ``.proto`` file, then run ``python tools/gen_proto.py`` (needs the ``dev`` extra).
"""
