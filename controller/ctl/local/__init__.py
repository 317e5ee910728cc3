# SPDX-License-Identifier: Apache-2.0
"""``gpudra local``: a real Kubernetes on this machine, without Docker.

Nothing in it is a mock: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and for
every node a containerd and a kubelet of its own, all built from their Go modules. The reading
order is ``cli`` (the command) -> ``up``, ``down``, ``status`` -> the parts they use:

- ``layout``, ``state``: where everything lies, and what is remembered between calls
- ``prerequisites``, ``build``: what the machine must have, and the Go binaries
- ``certs``, ``components``, ``node``, ``images``, ``network``, ``cgroups``: what is started, and with what
- ``process``, ``apiclient``: start, wait for health, stop by own pid; ask a component how it is
- ``agent``: account, token and process of our kubelet plugin on each node
"""
