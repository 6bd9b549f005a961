#!/usr/bin/env bash
# Pins the Go modules of one release, for a maintainer: writes go.mod and go.sum into the folder of its minor release, and prints the
# etcd version that a Kubernetes release wants. The list of releases is in ../release.rs.
#
#     src/local-cluster/modules/update.sh kubernetes 1.37.2     # kubernetes-1.37
#     src/local-cluster/modules/update.sh etcd 3.7.0            # etcd-3.7
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 kubernetes|etcd VERSION" >&2; exit 1; }
name=$1 version=${2#v} minor=${2#v}
minor=${minor%.*}
cd "$(dirname "$0")"
export GOFLAGS=-mod=mod GOWORK=off

# A field of what Go knows about a module: the path of its go.mod, or of its sources.
module() { go mod download -json "$1@v$version" | sed -n "s/^\t\"$2\": \"\(.*\)\",\{0,1\}$/\1/p"; }
# The lines of a go.mod that choose the language and its behaviour.
language() { grep -E '^(go|godebug) ' "$1"; }

mkdir -p "$name-$minor"
case $name in
kubernetes)
    theirs=$(module k8s.io/kubernetes GoMod)
    {
        echo "// What a control plane of Kubernetes $minor is built from. The staging modules are pinned beside k8s.io/kubernetes,"
        echo '// whose own go.mod refers to them by paths that exist in its repository only.'
        printf 'module kube-node.io/controlplane\n\n'
        language "$theirs"
        printf '\ntool (\n'
        printf '\tk8s.io/kubernetes/cmd/%s\n' \
            kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet kubemark
        printf ')\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$version"
        # The samples are built by nobody.
        sed -n 's|^\t\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$theirs" | grep -vE 'sample-(cli-plugin|controller)$' |
            sed "s|.*|\t& => & v0.${version#*.}|"
        echo ')'
    } >"$name-$minor/go.mod"
    ;;
etcd)
    theirs=$(module go.etcd.io/etcd/server/v3 GoMod)
    {
        echo "// What etcd $minor is built from."
        printf 'module kube-node.io/etcd\n\n'
        language "$theirs"
        printf '\ntool go.etcd.io/etcd/server/v3\n\nrequire go.etcd.io/etcd/server/v3 v%s\n' "$version"
    } >"$name-$minor/go.mod"
    ;;
*)
    echo "there is no module $name: kubernetes or etcd" >&2
    exit 1
    ;;
esac
(cd "$name-$minor" && rm -f go.sum && go mod tidy)
if [ "$name" = kubernetes ]; then
    wanted=$(sed -n '/name: "etcd"$/{n;s/.*version: //p}' "$(module k8s.io/kubernetes Dir)/build/dependencies.yaml")
    echo "Kubernetes $version wants etcd $wanted"
fi
