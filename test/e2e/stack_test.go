// Package e2e tests the built binaries on a real stack, as an operator uses them:
// gpuaas dev starts Postgres, Vault, Temporal, worker and API, and agents are real
// processes.
//
// It needs bin/ (./task build). With -short it runs no test.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	devstack "github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/otlptest"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

const (
	conditionTimeout = stacktest.Timeout
	// conditionEvery is how often a condition is checked, most of which start a process.
	conditionEvery = 250 * time.Millisecond
)

// stack is the stack that all tests of the process share.
type stack struct {
	*devstack.Stack
	secrets *secrets // all secrets of the stack and its agents
	// collector receives the traces of all programs.
	collector *otlptest.Receiver
}

// part is one row of gpuaas dev status -o json.
type part = devstack.Part

// shared is set by TestMain before any test runs and never again.
var shared *stack

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		return // go test reports that no test ran
	}
	// Parallel tests mostly wait, so the number of processors does not limit them.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	held, collector, stop := newSecrets(), otlptest.Start(), func() {}
	code := stacktest.Suite{Name: "e2e",
		Before: func(folder string) ([]string, error) {
			stop = held.watch(filepath.Join(folder, "dev"))
			return nil, os.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL())
		},
		Use: func(s *stacktest.Stack) (func(), error) {
			shared = &stack{s.Stack, held, collector}
			return nil, nil
		},
	}.Main(m)
	stop()
	collector.Close()
	os.Exit(code)
}

// command prepares the CLI with the environment of dev env, without a terminal.
func (s *stack) command(args ...string) *exec.Cmd {
	return s.Command(context.Background(), args...)
}

// result is the outcome of a command.
type result struct {
	args           []string
	stdout, stderr string
	code           int
}

// run runs the CLI and waits for its exit.
func run(t *testing.T, args ...string) result {
	t.Helper()
	c := shared.command(args...)
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{args, out.String(), stderr.String(), c.ProcessState.ExitCode()}
}

// ok runs the CLI and requires success.
func ok(t *testing.T, args ...string) result {
	t.Helper()
	r := run(t, args...)
	require.Zero(t, r.code, "gpuaas %s\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r
}

// decode reads a command's JSON.
func decode[T any](t *testing.T, r result) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &v), "%v: %s%s", r.args, r.stdout, r.stderr)
	return v
}

// lifecycleStep is the JSON output of a lifecycle command.
type lifecycleStep struct {
	Operation lifecycle.Operation `json:"operation"`
	Node      wire.NodeView       `json:"node"`
}

// act runs a lifecycle command, waits for it and returns the result.
func act(t *testing.T, args ...string) lifecycleStep {
	t.Helper()
	return decode[lifecycleStep](t, ok(t, append(args, "--wait", "-o", "json")...))
}

// show reads a node.
func show(t *testing.T, node string) wire.NodeView {
	t.Helper()
	return decode[wire.NodeView](t, ok(t, "node", "show", node, "-o", "json"))
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	harness.Poll(t, cond, conditionTimeout, conditionEvery, what)
}

func parts(t *testing.T) map[string]part {
	t.Helper()
	all, err := shared.Parts(t.Context())
	require.NoError(t, err)
	return all
}

// host returns a host name of the test's own.
func host(t *testing.T, name string) string {
	t.Helper()
	return fmt.Sprintf("%s-%s", name, schema.NewID()[24:])
}

// register adds a node.
func register(t *testing.T, name string) (nodeHost, id string) {
	t.Helper()
	nodeHost = host(t, name)
	id = strings.TrimSpace(ok(t, "node", "register", nodeHost, "--sku", "cpu-dev", "--region", "region-1").stdout)
	require.True(t, schema.IsID(id), id)
	return nodeHost, id
}

// enrolled registers a node, starts its agent and waits until it is active.
func enrolled(t *testing.T, name string) (nodeHost, id string) {
	t.Helper()
	nodeHost, id = register(t, name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(run(t, "op", "show", nodeHost).stdout, run(t, "task", "list", "--all", "--node", nodeHost).stdout, run(t, "node", "show", nodeHost).stdout)
		}
	})
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
	eventually(t, "the node becomes active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	return nodeHost, id
}

// agentDir is the folder of a node's agent.
func agentDir(nodeHost string) string { return harness.AgentDir(shared.Stack, nodeHost) }

// startWorkload starts a workload on the node and waits until its agent reports it.
func startWorkload(t *testing.T, nodeHost, name string, command ...string) {
	t.Helper()
	harness.StartWorkload(t, shared.Stack, nodeHost, name, command...)
	eventually(t, "the agent reports "+name, func() bool {
		return slices.ContainsFunc(show(t, nodeHost).Workloads, func(w task.Workload) bool { return w.Name == name })
	})
}
