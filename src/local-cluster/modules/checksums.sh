#!/usr/bin/env bash
# Pins the checksums of the published programs of all releases, for a maintainer: writes the file `checksums` beside this script from what
# the publishers state. The versions are those of the folders here; update.sh pins them.
set -euo pipefail
cd "$(dirname "$0")"

# Version of the module $2 in the folder $1.
version() { sed -n "s|^\t$2 \(v[^ ]*\) // indirect$|\1|p" "$1/go.mod"; }
{
    head -1 checksums
    for folder in kubernetes-*; do
        version=$(version "$folder" k8s.io/kubernetes)
        for arch in amd64 arm64; do
            for program in kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet; do
                path=$version/bin/linux/$arch/$program
                echo "$(curl -fsSL "https://dl.k8s.io/release/$path.sha256")  $path"
            done
        done
    done
    for folder in etcd-*; do
        version=$(version "$folder" go.etcd.io/etcd/server/v3)
        curl -fsSL "https://github.com/etcd-io/etcd/releases/download/$version/SHA256SUMS" |
            sed -nE "s|  (etcd-$version-linux-(amd64\|arm64).tar.gz)$|  $version/\1|p"
    done
} >checksums.new
mv checksums.new checksums
