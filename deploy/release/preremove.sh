#!/bin/sh
# Stops and disables @PACKAGE@ when it is removed, and does nothing in an upgrade. dpkg
# calls it with "remove", rpm with 0.
set -e
unit=@PACKAGE@.service
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -z "${DPKG_ROOT-}" ] && [ -d /run/systemd/system ]; then
	systemctl stop "$unit" || :
fi
if [ "$1" = 0 ]; then systemctl disable "$unit" >/dev/null 2>&1 || :; fi
