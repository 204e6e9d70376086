#!/bin/sh
# Builds one server of the development stack or of the tests and prints progress, because
# the first build takes minutes.
# Usage: build-server.sh PROGRAM FOLDER, from the repository root. The source of
# gpuaas-dev-NAME is in deploy/dev/NAME, that of gpuaas-test-NAME in test/NAME/server; the
# program is written to FOLDER.
set -eu
name=$1
flags='-s -w'
case $name in
gpuaas-test-kubernetes)
	source=test/kubernetes/server
	# Kubernetes reads its version from this variable, and clients expect one.
	version=$(cd "$source" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
	flags="$flags -X k8s.io/component-base/version.gitVersion=$version"
	;;
*) source=deploy/dev/${name#gpuaas-dev-} ;;
esac
mkdir -p "$2"
out=$(cd "$2" && pwd)/$name

start=$(date +%s)

# elapsed is the time since the start.
elapsed() {
	seconds=$(($(date +%s) - start))
	printf '%dm%02ds' $((seconds / 60)) $((seconds % 60))
}

# show reads the output of go build -v: one package per line, and messages.
show() {
	packages=0 downloads=0
	while IFS= read -r line; do
		case $line in
		'go: downloading '*) downloads=$((downloads + 1)) ;;
		*' '* | *:*) printf '%s\n' "$line" && continue ;;
		*) packages=$((packages + 1)) ;;
		esac
		if [ -t 2 ]; then
			printf '\r  %s: %d modules downloaded, %d packages compiled' "$(elapsed)" "$downloads" "$packages"
		elif [ $(((downloads + packages) % 250)) -eq 0 ]; then
			printf '  %s: %d modules downloaded, %d packages compiled\n' "$(elapsed)" "$downloads" "$packages"
		fi
	done
	[ $((downloads + packages)) -eq 0 ] || printf '\r  %s: %d modules downloaded, %d packages compiled\n' "$(elapsed)" "$downloads" "$packages"
}

echo "building $name: the first build takes minutes on two cores, later builds take seconds"
cd "$source"
status=$({
	{
		rc=0
		CGO_ENABLED=0 go build -v -buildvcs=false -trimpath -ldflags "$flags" -o "$out.building" . && mv -f "$out.building" "$out" || rc=$?
		echo "$rc" >&3
	} 2>&1 | show >&2
} 3>&1)
exit "$status"
