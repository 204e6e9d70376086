#!/bin/sh
# Disables the unit of @PACKAGE@ after a removal. After a purge, it removes configuration,
# state and users. dpkg calls it with "remove" or "purge"; rpm, which has no purge, with 0.
set -e
package=@PACKAGE@
unit=$package.service
root=${DPKG_ROOT-}

# helper runs Debian's helper, which removes the links and the records of a unit.
helper() {
	if command -v deb-systemd-helper >/dev/null 2>&1; then deb-systemd-helper "$1" "$unit" >/dev/null || :; fi
}

# account FILE NAME COMMAND removes a user or a group. One that cannot be removed stays, for example the
# group of a user that an administrator made: the purge continues.
account() {
	if ! grep -q "^$2:" "$root/etc/$1"; then return; fi
	"$3" ${root:+--prefix "$root"} "$2" || echo "$package: $2 of /etc/$1 is in use and stays" >&2
}

# purge_service removes what an operator made for the API or the worker.
purge_service() {
	rm -rf "$root"/etc/gpuaas/@SHORT@.env* "$root/etc/gpuaas/@SHORT@" "$root/var/lib/$package"
	account passwd "$package" userdel
	account group "$package" groupdel
	# The API and the worker share a group and a folder.
	if [ ! -e "$root/usr/bin/gpuaas-api" ] && [ ! -e "$root/usr/bin/gpuaas-worker" ]; then
		rm -rf "$root/etc/gpuaas/shared"
		account group gpuaas groupdel
	fi
}

# purge_agent removes the files of the agent and of its bootstrap script.
purge_agent() {
	for file in node-agent.env cert.pem key.pem ca-bundle.crt node-cert-ca-bundle.crt; do
		rm -rf "$root/etc/gpuaas/$file" "$root/etc/gpuaas/$file".stale-*
	done
	rm -rf "$root/opt/gpuaas/node-agent" "$root/var/lib/gpuaas/node-agent" "$root/var/lib/gpuaas"/node-agent.stale-*
	if [ -d "$root/etc/systemd/system" ]; then find "$root/etc/systemd/system" -name "$unit" -delete; fi
	for folder in /opt/gpuaas /var/lib/gpuaas; do
		if [ -d "$root$folder" ]; then rmdir "$root$folder" 2>/dev/null || echo "$package: $folder is not empty and stays" >&2; fi
	done
}

case $1 in
remove)
	# The next installation enables the unit as a new one, unless an administrator disabled it.
	if command -v deb-systemd-helper >/dev/null 2>&1 && deb-systemd-helper --quiet was-enabled "$unit"; then helper purge; fi
	;;
purge)
	helper purge
	if [ "$package" = gpuaas-node-agent ]; then purge_agent; else purge_service; fi
	if [ -d "$root/etc/gpuaas" ]; then rmdir "$root/etc/gpuaas" 2>/dev/null || echo "$package: /etc/gpuaas is not empty and stays" >&2; fi
	;;
esac
if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
