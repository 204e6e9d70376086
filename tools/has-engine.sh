#!/bin/sh
# Succeeds if the development stack finds a server here, in the order of gpuaas dev up: an address in the
# environment, or a program on PATH. Then the server needs no build.
# Usage: has-engine.sh temporal|vault
set -eu
case $1 in
temporal) address=${TEMPORAL_ADDRESS:-} ;;
vault) address=${VAULT_ADDR:-} ;;
*) echo "has-engine.sh: $1 is neither temporal nor vault" >&2 && exit 2 ;;
esac
if [ -n "$address" ]; then
	echo "using $1 at $address, from the environment"
elif program=$(command -v "$1"); then
	echo "using $program"
else
	exit 1
fi
