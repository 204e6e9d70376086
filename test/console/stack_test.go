// Package console tests the operator console in a browser, on a whole development stack: its
// accessibility, hostile text in it, a parked drain from its row to its end, and many
// nodes. With -args -screenshots docs/images it writes the screenshots of docs/console.md.
// It needs Chromium (sh tools/need-chromium.sh) and bin/ (./task build). ./task console-test
// runs it.
package console

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	devstack "github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
)

const (
	// conditionTimeout bounds the wait for a condition on a busy machine.
	conditionTimeout = 3 * time.Minute
	// conditionEvery is how often a condition is checked, most of which start a process.
	conditionEvery = 500 * time.Millisecond
	root           = "../.."
)

var (
	// stack and browser are set by TestMain before any test runs and never again.
	stack   *devstack.Stack
	browser *browsertest.Browser

	screenshots = flag.String("screenshots", "", "write screenshots to this `folder`, relative to the repository")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *screenshots != "" && !filepath.IsAbs(*screenshots) {
		*screenshots = filepath.Join(root, *screenshots)
	}
	if testing.Short() {
		os.Exit(m.Run())
	}
	code, err := withStack(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "console:", err)
		code = 1
	}
	os.Exit(code)
}

// needStack skips a test in the short mode.
func needStack(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a stack and Chromium")
	}
}

func withStack(m *testing.M) (code int, err error) {
	bin, err := filepath.Abs(filepath.Join(root, "bin", "gpuaas"))
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "gpuaas-console-")
	if err != nil {
		return 1, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another user
		return 1, err
	}
	browser, err = browsertest.Start(filepath.Join(dir, "browser"))
	defer browser.Stop()
	if err != nil {
		return 1, err
	}
	up, upErr := devstack.Up(context.Background(), bin, filepath.Join(dir, "dev"))
	defer func() { err = errors.Join(err, up.Down(), os.RemoveAll(dir)) }()
	if upErr != nil {
		return 1, upErr
	}
	stack = up
	return m.Run(), nil
}

// gpuaas runs the CLI and returns its output.
func gpuaas(t *testing.T, args ...string) string {
	t.Helper()
	out, err := stack.Command(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, "gpuaas %s\n%s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// read runs the CLI and decodes its output. It reports whether that worked.
func read(t *testing.T, into any, args ...string) bool {
	t.Helper()
	out, err := stack.Command(t.Context(), append(args, "-o", "json")...).Output()
	return err == nil && json.Unmarshal(out, into) == nil
}

func show(t *testing.T, host string) (v wire.NodeView) {
	t.Helper()
	require.True(t, read(t, &v, "node", "show", host), "gpuaas node show %s", host)
	return v
}

// operation is the node's newest operation.
func operation(t *testing.T, host string) (v wire.OperationView) {
	t.Helper()
	require.True(t, read(t, &v, "op", "show", host), "gpuaas op show %s", host)
	return v
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	harness.Poll(t, ok, conditionTimeout, conditionEvery, what)
}

// node registers a node, starts its agent and waits until it is active.
func node(t *testing.T, host string, flags ...string) {
	t.Helper()
	gpuaas(t, append([]string{"node", "register", host, "--sku", "cpu-dev", "--region", "region-1"}, flags...)...)
	gpuaas(t, "dev", "agent", host, "--detach", "--dir", stack.Dir)
	eventually(t, host+" becomes active", func() bool { return show(t, host).State == lifecycle.NodeActive })
}

// busy gives the node a workload that ends when finish is called, not at a signal, and waits
// until the agent reports it.
func busy(t *testing.T, host string) (finish func()) {
	t.Helper()
	gate := filepath.Join(filepath.Dir(stack.Dir), host+".gate")
	harness.StartWorkload(t, stack, host, "job-1", "sh", "-c", `trap : TERM; while [ ! -e `+gate+` ]; do sleep 0.1; done`)
	eventually(t, "the agent reports the workload", func() bool { return len(show(t, host).Workloads) == 1 })
	return func() { require.NoError(t, os.WriteFile(gate, nil, 0o600)) }
}
