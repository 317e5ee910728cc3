# SPDX-License-Identifier: Apache-2.0
"""``make demo``: the main job once, on a real Kubernetes or, where that cannot be, on stand-ins.

The story is told once (`tools.demo.story`) and runs in one of two worlds (`tools.demo.world`): the
local cluster, or an API server in memory with stand-ins for scheduler and kubelet around the real
node agent. The last line says which it was.
"""
