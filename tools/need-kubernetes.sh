#!/bin/sh
# Ensures that this machine can run a Kubernetes cluster for the tests: etcd, containerd, runc and
# the network plugins. Installs Debian's packages if they are missing. Elsewhere it only says what
# is missing, and the tests of Kubernetes are skipped.
set -eu
missing=
for program in etcd containerd ctr runc unshare; do
	PATH=$PATH:/usr/sbin command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -e /usr/lib/cni/ptp ] || [ -e /opt/cni/bin/ptp ] || missing="$missing network-plugins"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "Missing for the tests of Kubernetes, which are skipped:$missing" >&2
	exit 0
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Missing for the tests of Kubernetes:$missing. Installing them with $sudo apt-get." >&2
$sudo apt-get update -q
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
	etcd-server containerd runc containernetworking-plugins util-linux
