// Package console tests the operator console in a browser, on a whole development stack: its
// accessibility, hostile text in it, a parked drain from its row to its end, and many
// nodes. With -args -screenshots docs/images it writes the screenshots of docs/console.md.
// It needs Chromium (sh tools/need-chromium.sh) and bin/ (./task build). ./task console-test
// runs it.
package console

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuaas/gpuaas/schema/wire"
	devstack "github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

const (
	conditionTimeout = stacktest.Timeout
	conditionEvery   = stacktest.Every
	root             = stacktest.Root
)

var (
	// stack, operator and browser are set by TestMain before any test runs and never again.
	// operator uses the command line on the stack.
	stack    *devstack.Stack
	operator *stacktest.Stack
	browser  *browsertest.Browser

	screenshots = flag.String("screenshots", "", "write screenshots to this `folder`, relative to the repository")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(stacktest.Suite{Name: "console", Use: func(s *stacktest.Stack) (end func(), err error) {
		stack, operator = s.Stack, s
		browser, err = browsertest.Start(filepath.Join(s.Folder, "browser"))
		return browser.Stop, err
	}}.Main(m))
}

// needStack skips a test in the short mode.
func needStack(t *testing.T) {
	t.Helper()
	stacktest.Need(t)
}

// gpuaas runs the CLI and returns its output.
func gpuaas(t *testing.T, args ...string) string {
	t.Helper()
	return operator.Run(t, args...)
}

// read runs the CLI and decodes its output. It reports whether that worked.
func read(t *testing.T, into any, args ...string) bool {
	t.Helper()
	return operator.Read(t, into, args...)
}

func show(t *testing.T, host string) wire.NodeView {
	t.Helper()
	return operator.Node(t, host)
}

// operation is the node's newest operation.
func operation(t *testing.T, host string) wire.OperationView {
	t.Helper()
	return operator.Operation(t, host)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	operator.Eventually(t, what, ok)
}

// node registers a node, starts its agent and waits until it is active.
func node(t *testing.T, host string) {
	t.Helper()
	operator.Enroll(t, host, "cpu-dev")
}

// busy gives the node a workload that ends when finish is called, not at a signal, and waits
// until the agent reports it.
func busy(t *testing.T, host string) (finish func()) {
	t.Helper()
	operator.Occupy(t, host)
	return func() { operator.EndWorkload(t, host) }
}
