#!/bin/sh
# Fails if schema/openapi.yaml has a breaking change that tools/oasdiff/allowed.txt does not list.
# Usage: check.sh [BASE], from the repository root. BASE is a commit or a file. Its default is the last
# release before this commit; without a release, the merge base with origin/main, or the commit before.
set -eu
base=${1:-}
allowed=$(realpath "${ALLOWED:-tools/oasdiff/allowed.txt}")
old=$(mktemp)
trap 'rm -f "$old"' EXIT INT TERM
if [ -z "$base" ]; then
	base=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || true)
	if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then base=HEAD^; fi
fi
if [ -f "$base" ]; then cp "$base" "$old"; else git show "$base:schema/openapi.yaml" >"$old"; fi
echo "comparing schema/openapi.yaml with $base"
go -C tools/oasdiff tool oasdiff breaking "$old" "$(realpath schema/openapi.yaml)" --fail-on ERR --err-ignore "$allowed" --format singleline --color never
