#!/usr/bin/env bash
# Makes docs/demo.svg from a real run: builds kube-node, starts a cluster in a scratch folder, and draws what was said.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet --example terminal --bin kube-node
release=$(dirname target/*/release/kube-node)
PATH="$PWD/$release:$PATH"
scratch=$(mktemp -d)
trap 'kube-node down --data-dir "$scratch/data" --delete >/dev/null 2>&1; rm -rf "$scratch"' EXIT

say() {
  echo "\$ $1"
  shift
  "$@" 2>&1 || true
  echo
}
kubectl() { kube-node kubectl --data-dir "$scratch/data" -- "$@"; }
ready() {
  until [ "$(kubectl get nodeset hollow-nodes -o 'jsonpath={.status.availableReplicas}')" = "$1" ]; do sleep 0.2; done
}

{
  say "cargo run --release -- up --detach" kube-node up --detach --data-dir "$scratch/data" | sed "s#$scratch/data#~/.local/share/kube-node/default#g; s# --data-dir [^ ]*##g"
  kubectl create deployment web --image=example.com/web --replicas=30 >/dev/null
  say "kubectl scale nodeset hollow-nodes --replicas=100" kubectl scale nodeset hollow-nodes --replicas=100
  ready 100
  say "kubectl get nodesets" kubectl get nodesets
  say "kubectl get nodeclasses" kubectl get nodeclasses
  kubectl wait --for=condition=Available deployment/web --timeout=60s >/dev/null
  say "kubectl get nodes | head -4" bash -c 'kube-node kubectl --data-dir "$0" -- get nodes | head -4' "$scratch/data"
  say "kubectl get deployment web" kubectl get deployment web
} | "$release/examples/terminal" > docs/demo.svg
