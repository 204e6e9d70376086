// Package need is for tests that need more than Go: a program, root, a part of the system. Such a test
// skips on a machine that lacks it. In CI (CI=true) it fails instead, because a suite that skips there
// checks nothing.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// That ends the test unless ok: it skips, or fails in CI. The message says what is missing and how to get
// it.
func That(tb testing.TB, ok bool, format string, args ...any) {
	tb.Helper()
	switch message := fmt.Sprintf(format, args...); {
	case ok:
	case os.Getenv("CI") == "true":
		tb.Fatal(message + " (CI=true: a test must not skip)")
	default:
		tb.Skip(message)
	}
}

// Program returns the path of a program, which how says how to install.
func Program(tb testing.TB, name, how string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	That(tb, err == nil, "there is no %s; %s", name, how)
	return path
}

// Root ends the test unless the process is root's. why says what needs it.
func Root(tb testing.TB, why string) {
	tb.Helper()
	That(tb, os.Geteuid() == 0, "%s needs root; run the test as root", why)
}
