#!/bin/sh
# Builds one embedded server for development and prints progress, because the first
# build takes minutes.
# Usage: build-server.sh NAME MODULE-FOLDER MINUTES, from the repository root.
set -eu
name=$1 dir=$2 minutes=$3 out=$PWD/bin/$1

# Reads the output of go build -v: one package per line, and messages.
show() {
	packages=0 downloads=0
	while IFS= read -r line; do
		case $line in
		'go: downloading '*) downloads=$((downloads + 1)) ;;
		*' '* | *:*) printf '%s\n' "$line" && continue ;;
		*) packages=$((packages + 1)) ;;
		esac
		if [ -t 2 ]; then
			printf '\r  %d modules downloaded, %d packages compiled' "$downloads" "$packages"
		elif [ $(((downloads + packages) % 250)) -eq 0 ]; then
			printf '  %d modules downloaded, %d packages compiled\n' "$downloads" "$packages"
		fi
	done
	[ $((downloads + packages)) -eq 0 ] || printf '\r  %d modules downloaded, %d packages compiled\n' "$downloads" "$packages"
}

echo "building bin/$name: the first build takes about $minutes minutes on two cores, later ones seconds"
cd "$dir"
status=$({
	{
		rc=0
		CGO_ENABLED=0 go build -v -buildvcs=false -trimpath -ldflags '-s -w' -o "$out" . || rc=$?
		echo "$rc" >&3
	} 2>&1 | show >&2
} 3>&1)
exit "$status"
