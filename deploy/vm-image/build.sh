#!/bin/sh
# Builds the image of virtual machines into the folder that the first argument names, from the
# node agent's sources and Debian's kernel for virtual machines. The kernel's package is
# downloaded once, to .cache/vm-image; GPUAAS_KERNEL_PACKAGE names another file instead.
# Usage: build.sh FOLDER [workload], from the repository root. With "workload", the image has the
# agent of development, and a workload that reports its start and its end on the console.
# The exit code is 3 if there is no kernel, or no program that creates a file system.
set -eu
out=$1
workload=${2-}
cache=.cache/vm-image
package=${GPUAAS_KERNEL_PACKAGE-}

# newest prints the newest package of the cache.
newest() {
	for file in $(ls -t "$cache"/linux-image-*-cloud-amd64_*.deb 2>/dev/null); do
		echo "$file"
		return
	done
}

mkdir -p "$cache"
[ -n "$package" ] || package=$(newest)
if [ -z "$package" ]; then
	command -v apt-get >/dev/null 2>&1 || {
		echo "This machine has no apt-get. Set GPUAAS_KERNEL_PACKAGE to a linux-image-…-cloud-amd64 package of Debian." >&2
		exit 3
	}
	name=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n 1)
	[ -n "$name" ] || { echo "apt has no linux-image-cloud-amd64; run apt-get update." >&2; exit 3; }
	echo "Downloading $name" >&2
	(cd "$cache" && apt-get download -q "$name" >&2)
	package=$(newest)
fi
PATH=$PATH:/usr/sbin:/sbin
command -v mke2fs >/dev/null 2>&1 || { echo "This machine has no mke2fs. Install the package e2fsprogs." >&2; exit 3; }
# The same file system each time: a fixed ID, seed and time. It is written to no disk but those of
# machines.
id=f2a5c1de-7f4e-4b61-9d0c-3f6f1c0a9b27
rm -f "$cache/state.img"
E2FSPROGS_FAKE_TIME=1 SOURCE_DATE_EPOCH=1 mke2fs -q -F -t ext4 -b 4096 -m 0 -N 4096 -J size=4 -L gpuaas -U "$id" -O '^resize_inode' \
	-E "lazy_itable_init=0,lazy_journal_init=0,nodiscard,root_owner=0:0,hash_seed=$id" "$cache/state.img" 512M >/dev/null
export CGO_ENABLED=0 GOOS=linux GOARCH=amd64
agent=gpuaas-node-agent
[ -z "$workload" ] || agent=gpuaas-dev-agent
go build -trimpath -buildvcs=false "-ldflags=-s -w" -o "$cache/$agent" "./cmd/$agent"
go build -trimpath -buildvcs=false "-ldflags=-s -w" -o "$cache/init" ./deploy/vm-image/init
unset GOOS GOARCH
go run -trimpath -buildvcs=false ./deploy/vm-image -kernel-package "$package" -agent "$cache/$agent" -init "$cache/init" -state "$cache/state.img" \
	"-workload=$([ -z "$workload" ] && echo false || echo true)" -o "$out"
