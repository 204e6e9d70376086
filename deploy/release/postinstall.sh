#!/bin/sh
# Enables @PACKAGE@. Starts it only if it is configured, and restarts it in an upgrade
# only if it runs. dpkg calls it with "configure OLD-VERSION", also after a removal; rpm with
# the number of installed versions.
set -e
unit=@PACKAGE@.service
config=/etc/gpuaas/@SHORT@.env
sysusers=/usr/lib/sysusers.d/@PACKAGE@.conf
root=${DPKG_ROOT-}

case $1 in
configure) if [ -z "${2-}" ]; then action=restart; else action=try-restart; fi ;;
1) action=restart ;;
[2-9]*) action=try-restart ;;
*) exit 0 ;;
esac

if [ -e "$root$sysusers" ]; then
	systemd-sysusers ${root:+--root="$root"} "${sysusers##*/}"
	group=$(sed -n "s/^gpuaas:[^:]*:\([0-9]*\):.*/\1/p" "$root/etc/group")
	# A directory service may have the group instead.
	chgrp "${group:-gpuaas}" "$root/etc/gpuaas" "$root$config.example"
fi

# Debian's helper keeps an administrator's choice to disable a unit. It has no record of a unit that is
# new or was removed.
if command -v deb-systemd-helper >/dev/null 2>&1; then
	if ! deb-systemd-helper --quiet debian-installed "$unit"; then action=restart; fi
	deb-systemd-helper unmask "$unit" >/dev/null || :
	if deb-systemd-helper --quiet was-enabled "$unit"; then
		deb-systemd-helper enable "$unit" >/dev/null || :
	else
		deb-systemd-helper update-state "$unit" >/dev/null || :
	fi
elif [ "$action" = restart ]; then
	systemctl enable "$unit" >/dev/null 2>&1 || :
fi

if [ -z "$root" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	if [ "$action" = try-restart ] || [ -e "$config" ]; then systemctl "$action" "$unit" || :; fi
fi
