#!/bin/sh
# Ensures that this machine can run virtual machines for the tests: libvirtd, virsh, QEMU and iPXE.
# Installs Debian's packages if they are missing. Elsewhere it only says what is missing, and the
# tests of virtual machines are skipped.
set -eu
missing=
for program in libvirtd virsh qemu-system-x86_64 cpio; do
	PATH=$PATH:/usr/sbin command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -e /usr/lib/ipxe/ipxe.lkrn ] || missing="$missing ipxe"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "Missing for the tests of virtual machines, which are skipped:$missing" >&2
	exit 0
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Missing for the tests of virtual machines:$missing. Installing them with $sudo apt-get." >&2
$sudo apt-get update -q
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
	libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 cpio ipxe
