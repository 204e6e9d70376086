#!/bin/sh
# Creates the root of the machines of test/install: Debian with systemd, and in /srv/apt a package
# repository with what docs/install.md installs, because the machines have no Internet. It does
# nothing if the root exists and was made by this version of the script.
# Usage: machine-root.sh FOLDER, as root. The programs are those of need.sh install.
set -eu
root=$1
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
made=$(cksum <"$0")
if [ -f "$root/srv/made-by" ] && [ "$(cat "$root/srv/made-by")" = "$made" ]; then exit 0; fi
echo "creating $root, which takes about five minutes" >&2
rm -rf "$root" "$root.new"
mkdir -p "$(dirname "$root")"
debootstrap --variant=minbase \
	--include=systemd,systemd-sysv,dbus,iproute2,procps,ca-certificates,openssh-server,openssh-client \
	bookworm "$root.new" "$mirror"
# The packages of the page, with all that they depend on.
chroot "$root.new" apt-get update -q
chroot "$root.new" apt-get install -y -q --no-install-recommends --download-only postgresql curl jq openssl
mkdir -p "$root.new/srv/apt"
mv "$root.new"/var/cache/apt/archives/*.deb "$root.new/srv/apt/"
(cd "$root.new/srv/apt" && apt-ftparchive packages . >Packages)
echo 'deb [trusted=yes] file:/srv/apt ./' >"$root.new/etc/apt/sources.list"
# The machines are deleted, so their dpkg need not wait for the disk.
echo force-unsafe-io >"$root.new/etc/dpkg/dpkg.cfg.d/tests"
rm -rf "$root.new"/var/lib/apt/lists/*
printf '%s\n' "$made" >"$root.new/srv/made-by"
mv "$root.new" "$root"
