#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bring up a kind cluster with gpudra and simulated GPUs. May be run again: what is there is kept.
#
#   deploy/kind/up.sh            start the cluster, build and load the image, install the chart
#   deploy/kind/up.sh down       delete the cluster
#
# What each node pretends to have is in values.yaml.
# NODE_IMAGE=kindest/... another node image (1.34 or newer)
set -euo pipefail

cd "$(dirname "$0")/../.."
readonly CLUSTER=gpudra
readonly IMAGE=gpudra.local/gpudra:dev
readonly WORKLOAD_IMAGE=gpudra.local/busybox:1

need() {
  command -v "$1" >/dev/null || { echo "error: $1 is not installed: $2" >&2; exit 1; }
}

need docker "kind runs its nodes as containers"
need kind "see kind's quick start"

if [[ ${1:-} == down ]]; then
  exec kind delete cluster --name "$CLUSTER"
fi

need helm "it installs the chart"
need kubectl "it talks to the cluster"

echo "[1/4] cluster"
if ! kind get clusters | grep -qx "$CLUSTER"; then
  kind create cluster --config deploy/kind/cluster.yaml --wait 120s ${NODE_IMAGE:+--image "$NODE_IMAGE"}
fi

echo "[2/4] gpudra's image"
docker build --tag "$IMAGE" --file deploy/container/Containerfile .
kind load docker-image --name "$CLUSTER" "$IMAGE"

echo "[3/4] the image of the examples"
docker pull --quiet busybox:1
docker tag busybox:1 "$WORKLOAD_IMAGE"
kind load docker-image --name "$CLUSTER" "$WORKLOAD_IMAGE"

echo "[4/4] chart"
kubectl config use-context "kind-$CLUSTER" >/dev/null
# helm never updates kinds that it has installed.
kubectl apply --server-side --filename deploy/charts/gpudra/crds >/dev/null
kubectl create namespace gpudra-system --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl label --overwrite namespace gpudra-system pod-security.kubernetes.io/enforce=privileged >/dev/null
helm upgrade --install gpudra deploy/charts/gpudra --namespace gpudra-system --wait --timeout 3m \
  --set image.repository="${IMAGE%:*}" --set image.tag="${IMAGE##*:}" --set image.pullPolicy=Never \
  --values deploy/kind/values.yaml

kubectl get resourceslices
echo "Try an example: kubectl apply -f deploy/examples/one-gpu"
