#!/bin/sh
# Ensures that this machine has what some tests need, and installs Debian's packages if something is
# missing. Elsewhere it only says what is missing, and the tests are skipped. In CI (CI=true) a test must
# not skip, so there it fails.
# Usage: need.sh libvirt|kubernetes|host|install
#   libvirt     virtual machines: libvirtd, virsh, QEMU and iPXE
#   kubernetes  a Kubernetes cluster: etcd, containerd, runc and the network plugins
#   install     machines with a systemd and a network of their own
#   host        journald, D-Bus, Docker and systemd, for the tests of the node agent and its package
set -eu
missing=
PATH=$PATH:/usr/sbin:/sbin
programs() {
	for program in "$@"; do
		command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
	done
}

case ${1-} in
libvirt)
	programs libvirtd virsh qemu-system-x86_64 cpio mke2fs
	[ -e /usr/lib/ipxe/ipxe.lkrn ] || missing="$missing ipxe"
	packages="libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 cpio e2fsprogs ipxe"
	;;
kubernetes)
	programs etcd containerd ctr runc unshare
	[ -e /usr/lib/cni/ptp ] || [ -e /opt/cni/bin/ptp ] || missing="$missing network-plugins"
	packages="etcd-server containerd runc containernetworking-plugins util-linux"
	;;
host)
	programs journalctl dbus-daemon dockerd systemd-analyze unshare nsenter dpkg-deb cpio jq curl tar sha256sum
	[ -x /lib/systemd/systemd-journal-remote ] || missing="$missing systemd-journal-remote"
	packages="systemd systemd-journal-remote dbus-daemon docker.io util-linux dpkg cpio jq curl tar coreutils"
	;;
install)
	programs debootstrap systemd-nspawn apt-ftparchive ip nsenter unshare
	packages="debootstrap systemd-container apt-utils iproute2 util-linux"
	;;
*)
	echo "usage: need.sh libvirt|kubernetes|host|install" >&2
	exit 2
	;;
esac
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "Missing for the tests ($1):$missing. The tests that need them are skipped." >&2
	[ "${CI-}" != true ]
	exit
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Missing for the tests ($1):$missing. Installing them with $sudo apt-get." >&2
$sudo apt-get update -q
# shellcheck disable=SC2086 # a list of packages
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages
