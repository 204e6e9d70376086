#!/bin/sh
# Installs the gpuaas node agent from the folder of this script: the binary and the
# systemd unit, and the env file if the environment contains the variables of a
# bundle. Install the CA bundles first. Run it as root:
#
#   sh install-node-agent.sh [--no-start]
#
# --no-start does not restart the agent. These variables change the defaults:
#
#   GPUAAS_NODE_AGENT_INSTALL_ROOT  /opt/gpuaas/node-agent
#   GPUAAS_NODE_AGENT_ENV_FILE      /etc/gpuaas/node-agent.env
#   GPUAAS_NODE_AGENT_SYSTEMD_UNIT  gpuaas-node-agent.service
#   DESTDIR                         install below this folder; none by default
#
# On a host with the package gpuaas-node-agent for Debian or RPM, the script writes only the
# env file: the program and the unit belong to the package.
#
# You can run the script again at any time. If the environment contains an enrollment
# token, the script renames existing certificates and keys and deletes nothing.
set -eu
umask 077
LC_ALL=C
export LC_ALL

root=${DESTDIR-}
install_root=${GPUAAS_NODE_AGENT_INSTALL_ROOT:-/opt/gpuaas/node-agent}
env_file=${GPUAAS_NODE_AGENT_ENV_FILE:-/etc/gpuaas/node-agent.env}
unit=${GPUAAS_NODE_AGENT_SYSTEMD_UNIT:-gpuaas-node-agent.service}
here=$(dirname "$0")
stamp=$(date -u +%Y%m%dT%H%M%SZ)-$$

fail() { printf "gpuaas: %s\n" "$*" >&2; exit 1; }

# folder creates a folder and its parents, readable by all regardless of umask.
folder() { (umask 022 && mkdir -p "$1"); }

# put FILE MODE replaces a file by standard input atomically.
put() {
	folder "$(dirname "$1")"
	tmp=$(mktemp "$1.XXXXXX")
	cat >"$tmp" || { rm -f -- "$tmp"; return 1; }
	chmod "$2" "$tmp"
	sync "$tmp" || :
	mv -f -- "$tmp" "$1"
}

# aside renames those of its arguments that exist; it deletes nothing.
aside() {
	for f in "$@"; do
		case $f in *.stale-*) continue ;; esac
		if [ -e "$f" ] || [ -L "$f" ]; then mv -- "$f" "$f.stale-$stamp"; fi
	done
}

# setting NAME prints a value from the env file.
setting() {
	[ ! -f "$root$env_file" ] || sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" "$root$env_file" | tail -n 1
}

# stale_identity renames the files of an older identity. If they belong to another
# node, it renames the whole state folder.
stale_identity() {
	state=$(setting GPUAAS_STATE_DIR)
	state=$root${state:-/var/lib/gpuaas/node-agent}
	was=$(setting GPUAAS_NODE_ID)
	if [ -n "$was" ] && [ "$was" != "$GPUAAS_NODE_ID" ]; then aside "$state"; fi
	aside "$root${GPUAAS_CERT_PATH:-/etc/gpuaas/cert.pem}" "$root${GPUAAS_KEY_PATH:-/etc/gpuaas/key.pem}" \
		"$state"/identity* "$state"/recover* "$state"/*-key.* "$state"/removed.json
}

# writable prints the folders of the agent's files, which its unit must be able to write
# to, other than the default ones.
writable() {
	for f in "$(setting GPUAAS_STATE_DIR)/." "$(setting GPUAAS_CERT_PATH)" "$(setting GPUAAS_KEY_PATH)" "$(setting GPUAAS_CA_BUNDLE_PATH)" \
		"$(setting GPUAAS_NODE_CERT_CA_BUNDLE_PATH)" "$env_file"; do
		case $f in
		*[!A-Za-z0-9._/@:+-]* | */../* | */.. | /etc/gpuaas/* | /var/lib/gpuaas/*) ;;
		/?*/?*) printf " -%s" "${f%/*}" ;;
		esac
	done
}

# program prints the path of the agent for this host in the folder of this script.
program() {
	case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64) arch=arm64 ;;
	*) arch=$(uname -m) ;;
	esac
	if [ -f "$here/gpuaas-node-agent-$arch" ]; then
		printf "%s" "$here/gpuaas-node-agent-$arch"
	else
		printf "%s" "$here/gpuaas-node-agent"
	fi
}

# packaged reports whether a package of Debian or RPM installed the agent with the paths of
# this installation.
packaged() {
	[ -f "$root/usr/lib/systemd/system/$unit" ] && [ -x "$root$install_root/bin/gpuaas-node-agent" ] &&
		[ "$env_file" = /etc/gpuaas/node-agent.env ] && [ -z "$(writable)" ]
}

keys="GPUAAS_NODE_ID GPUAAS_ENROLLMENT_TOKEN GPUAAS_API_URL GPUAAS_TASK_SIGNING_PUBKEYS GPUAAS_CA_BUNDLE_PATH \
GPUAAS_NODE_CERT_CA_BUNDLE_PATH GPUAAS_CERT_PATH GPUAAS_KEY_PATH GPUAAS_ENV"
# A bundle without a workload driver leaves a configured one as it is.
if [ -n "${GPUAAS_WORKLOAD_DRIVER-}" ]; then keys="$keys GPUAAS_WORKLOAD_DRIVER"; fi
# Nor does one without release keys remove those of the node.
if [ -n "${GPUAAS_RELEASE_PUBKEYS-}" ]; then keys="$keys GPUAAS_RELEASE_PUBKEYS"; fi

# check_env rejects values that would be more than a value in the env file.
check_env() {
	for key in $keys; do
		eval "value=\${$key-}"
		case $value in *[!A-Za-z0-9._:/@%+,=~-]*) fail "$key contains a quote, a space or another special character; nothing was changed" ;; esac
	done
}

# write_env writes the env file from the exported variables of a bundle. It keeps
# well-formed lines that set other variables.
write_env() {
	stale_identity
	{
		if [ -f "$root$env_file" ]; then
			grep -E "^[A-Za-z_][A-Za-z0-9_]*=(\"[^\"\\]*\"|[A-Za-z0-9_./:@%+,=-]*)$" "$root$env_file" |
				grep -v -E "^($(echo "$keys" | tr " " "|"))=" || :
		fi
		for key in $keys; do
			eval "value=\${$key-}"
			if [ -n "$value" ]; then printf "%s=\"%s\"\n" "$key" "$value"; fi
		done
	} | put "$root$env_file" 0600
}

start=yes
case "${1-}" in
"") ;;
--no-start) start= ;;
*) fail "usage: sh install-node-agent.sh [--no-start]" ;;
esac
# sed and systemd would read other characters as more than a part of a name.
for path in "$install_root" "$env_file" "/$unit"; do
	case $path in
	*[!A-Za-z0-9._/@:+-]* | */../* | */..) fail "invalid name: GPUAAS_NODE_AGENT_INSTALL_ROOT, _ENV_FILE or _SYSTEMD_UNIT; nothing was changed" ;;
	/*) ;;
	*) fail "GPUAAS_NODE_AGENT_INSTALL_ROOT and _ENV_FILE must start with /; nothing was changed" ;;
	esac
done
case $unit in */*) fail "GPUAAS_NODE_AGENT_SYSTEMD_UNIT must be a name; nothing was changed" ;; esac
if [ "$(id -u)" != 0 ] && [ -z "$root" ]; then fail "run this as root"; fi
agent=$(program)
[ -f "$agent" ] || fail "gpuaas-node-agent is missing from the folder of this script, or has no binary for $(uname -m); nothing was changed"
"$agent" version >/dev/null || fail "this host cannot run gpuaas-node-agent; nothing was changed"

if [ -n "${GPUAAS_NODE_ID-}" ] && [ -n "${GPUAAS_ENROLLMENT_TOKEN-}" ]; then
	check_env
	systemctl stop "$unit" >/dev/null 2>&1 || :
	write_env
fi
# A folder that the unit makes writable must exist: the agent cannot create it in a read-only file system.
for writable in /var/lib/gpuaas $(writable); do folder "$root${writable#-}"; done
if packaged; then
	echo "gpuaas: the package gpuaas-node-agent is installed; its program and unit are kept"
else
	put "$root$install_root/bin/gpuaas-node-agent" 0755 <"$agent"
	sed -e "s|@INSTALL_ROOT@|$install_root|g" -e "s|@ENV_FILE@|$env_file|g" -e "s|@WRITABLE@|$(writable)|g" "$here/gpuaas-node-agent.service" |
		put "$root/etc/systemd/system/$unit" 0644
fi
systemctl daemon-reload
systemctl enable "$unit"
if [ -n "$start" ]; then systemctl restart "$unit"; fi
