#!/usr/bin/env bash
# Installs the tools that `kube-node up --real-node` calls, on Debian and Ubuntu: nftables, iproute2 and util-linux, and a
# static busybox for images with a shell, which tests pack. containerd, runc and the CNI plugins are built by kube-node.
# Root; changes nothing where all is there. With --check it installs nothing, names what is missing, and then fails.
set -euo pipefail

has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

packages=()
has nft || packages+=(nftables)
has ip || packages+=(iproute2)
{ has unshare && has nsenter && has setpriv; } || packages+=(util-linux)
has mount || packages+=(mount)
[ -x /bin/busybox ] || packages+=(busybox-static)
[ "${#packages[@]}" -gt 0 ] || exit 0

if [ "${1-}" = --check ]; then
  echo "${packages[*]}"
  exit 1
fi
[ "$(id -u)" = 0 ] || { echo "run tests/real-node/install.sh as root: it installs ${packages[*]}" >&2; exit 1; }
has apt-get || { echo "no apt-get here: install ${packages[*]}, or what your distribution calls them" >&2; exit 1; }

export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --quiet --yes --no-install-recommends "${packages[@]}"; }
# Lists may be absent or too old.
install || { apt-get update --quiet && install; }
