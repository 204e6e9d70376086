#!/bin/sh
# Prints the section of CHANGELOG.md about a release, and fails if there is none. A prerelease such as
# v1.2.3-rc.1 has the notes of v1.2.3, or those of the section Unreleased.
# Usage: release-notes.sh TAG, from the repository root.
set -eu
tag=${1#v}
# section NAME prints the lines below a heading such as "## 1.2.3", "## [1.2.3] - 2026-03-01" or "## v1.2.3".
section() {
	awk -v want="$1" '
		/^## / { name = $2; gsub(/[][]/, "", name); sub(/^v/, "", name); found = name == want; next }
		found { print; if (NF) some = 1 }
		END { exit !some }' CHANGELOG.md
}
section "$tag" && exit
case $tag in
*-*) section "${tag%%-*}" || section Unreleased && exit ;;
esac
echo "CHANGELOG.md has no section about v$tag" >&2
exit 1
