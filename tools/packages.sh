#!/bin/sh
# Prints the packages that ./task test:go tests, as paths: "concurrent" those that
# use goroutines or locks, in code or tests; "sequential" the rest.
# Suites with their own targets are left out.
# Usage: packages.sh concurrent|sequential, from the repository root.
set -eu
want=$1
module=$(go list -m)
go list -f '{{.ImportPath}} {{len .TestGoFiles}}{{len .XTestGoFiles}}' ./... | while read -r path tests; do
	dir=./${path#"$module"/}
	case $dir in
	./test/e2e* | ./test/webui* | ./test/console* | ./test/faults* | ./test/bench* | ./test/vm* | ./test/install* | ./test/upgrade* | ./test/images* | ./test/kubernetes* | ./deploy/helm* | ./deploy/ansible* | ./internal/archtest*) continue ;;
	esac
	[ "$tests" != 00 ] || continue # no test files; the build compiles it
	kind=sequential
	if grep -qE '(^|[[:space:]])go (func\(|[A-Za-z_.]+\()|"sync|errgroup|\.Go\(' "$dir"/*.go; then kind=concurrent; fi
	[ "$kind" != "$want" ] || printf '%s ' "$dir"
done
echo
