#!/usr/bin/env bash
# Installs what `kube-node up --real-node` needs on Debian and Ubuntu: containerd, runc, CNI plugins, packet filters,
# iproute2, and a static busybox for images with a shell. Root; changes nothing where all is there.
set -euo pipefail

has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }
has_plugins() {
  local dir plugin
  for dir in /usr/lib/cni /opt/cni/bin; do
    for plugin in bridge host-local loopback portmap; do [ -x "$dir/$plugin" ] || continue 2; done
    return 0
  done
  return 1
}

# Asked for by what they bring, not by name: Docker's containerd.io serves as well, and conflicts with Debian's.
packages=()
{ has containerd && has ctr; } || packages+=(containerd)
has runc || packages+=(runc)
has_plugins || packages+=(containernetworking-plugins)
has iptables || packages+=(iptables)
has nft || packages+=(nftables)
has ip || packages+=(iproute2)
{ has unshare && has nsenter; } || packages+=(util-linux)
[ -x /bin/busybox ] || packages+=(busybox-static)
[ "${#packages[@]}" -gt 0 ] || exit 0

[ "$(id -u)" = 0 ] || { echo "run tests/real-node/install.sh as root: it installs ${packages[*]}" >&2; exit 1; }
has apt-get || { echo "no apt-get here: install ${packages[*]}, or what your distribution calls them" >&2; exit 1; }

# The node brings a containerd of its own: the distribution's service is not started.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --no-install-recommends "${packages[@]}"; }
# Lists may be absent or too old.
install || { apt-get update && install; }
if [[ " ${packages[*]} " == *" containerd "* ]] && has systemctl; then
  # Else it would start with the machine.
  systemctl disable containerd.service >/dev/null 2>&1 || true
fi
