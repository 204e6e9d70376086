#!/bin/sh
# Ensures that this machine has the programs of a PostgreSQL server, which the
# development stack and the tests start. Installs the system's package if it has
# none. With GPUAAS_DATABASE_URL that server is used instead.
set -eu
[ -z "${GPUAAS_DATABASE_URL:-}" ] || exit 0

found() {
	command -v initdb >/dev/null 2>&1 && return 0
	# A link on PATH leads to the folder of the server's programs.
	if server=$(command -v postgres); then
		[ ! -x "$(dirname "$(readlink -f "$server")")/initdb" ] || return 0
	fi
	for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin \
		/usr/local/opt/postgresql*/bin /usr/local/pgsql/bin; do
		[ ! -x "$dir/initdb" ] || return 0
	done
	return 1
}

found && exit 0

sudo=
if [ "$(id -u)" != 0 ] && ! command -v brew >/dev/null 2>&1; then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "No PostgreSQL server found, and no sudo to install one." >&2
		echo "Put the programs of PostgreSQL 15 or later on PATH, or set GPUAAS_DATABASE_URL." >&2
		exit 1
	fi
	sudo=sudo
fi
say() {
	echo "No PostgreSQL server found. Installing one: $*" >&2
	echo "To use a running server, interrupt this and set GPUAAS_DATABASE_URL." >&2
}
if command -v apt-get >/dev/null 2>&1; then
	say "$sudo apt-get install postgresql"
	$sudo apt-get update -q
	# Prevents the package from starting a database.
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql-common
	$sudo sed -i 's/^#*create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql
elif command -v dnf >/dev/null 2>&1; then
	say "$sudo dnf install postgresql-server"
	$sudo dnf install -y postgresql-server
elif command -v pacman >/dev/null 2>&1; then
	say "$sudo pacman -S postgresql"
	$sudo pacman -S --noconfirm postgresql
elif command -v brew >/dev/null 2>&1; then
	say "brew install postgresql"
	brew install postgresql
else
	echo "No PostgreSQL server found, and none of the supported package managers (apt-get, dnf, pacman, brew)." >&2
	echo "Install PostgreSQL 15 or later, or set GPUAAS_DATABASE_URL." >&2
	exit 1
fi
found || { echo "PostgreSQL was installed, but initdb is neither in the usual folders nor on PATH." >&2; exit 1; }
