#!/bin/sh
# Ensures that this machine has Chromium, in which test/webui opens Temporal's Web UI
# and test/console the operator console.
# Installs the system's package if there is none.
set -eu

found() {
	for name in chromium chromium-browser google-chrome "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" \
		/Applications/Chromium.app/Contents/MacOS/Chromium; do
		! command -v "$name" >/dev/null 2>&1 || return 0
	done
	return 1
}

found && exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
say() { echo "No Chromium found. Installing it: $*" >&2; }
if command -v apt-get >/dev/null 2>&1; then
	say "$sudo apt-get install chromium"
	$sudo apt-get update -q
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium
elif command -v dnf >/dev/null 2>&1; then
	say "$sudo dnf install chromium"
	$sudo dnf install -y chromium
elif command -v pacman >/dev/null 2>&1; then
	say "$sudo pacman -S chromium"
	$sudo pacman -S --noconfirm chromium
elif command -v brew >/dev/null 2>&1; then
	say "brew install --cask google-chrome"
	brew install --cask google-chrome
else
	echo "No Chromium found, and none of the supported package managers (apt-get, dnf, pacman, brew)." >&2
	echo "Install Chromium or Google Chrome, so that chromium or google-chrome is on PATH." >&2
	exit 1
fi
found || { echo "Chromium was installed, but none of chromium, chromium-browser and google-chrome is on PATH." >&2; exit 1; }
