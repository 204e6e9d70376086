// Package e2e drives the built binaries on the real stack, as an operator
// would: gpuaas dev brings up Postgres, Vault, Temporal, worker and API, agents
// are real processes, and every assertion reads what a person could read.
//
// It needs bin/ (./task build) and is left out by go test -short.
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
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	devstack "github.com/gpuaas/gpuaas/test/stack"
)

// conditionTimeout bounds the wait for a condition on a loaded machine.
const conditionTimeout = 90 * time.Second

// stack is the stack that all tests of the process share.
type stack struct {
	*devstack.Stack
	dir string // state directory

	secrets *secrets // all secrets of the stack and its agents
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
	code, err := withStack(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func withStack(m *testing.M) (code int, err error) {
	bin, err := filepath.Abs("../../bin/gpuaas")
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "gpuaas-e2e-")
	if err != nil {
		return 1, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another user
		return 1, err
	}
	state := filepath.Join(dir, "dev")
	held := newSecrets()
	defer held.watch(state)()
	up, upErr := devstack.Up(context.Background(), bin, state)
	defer func() { err = errors.Join(err, up.Down(), os.RemoveAll(dir)) }()
	if upErr != nil {
		return 1, upErr
	}
	s := &stack{up, up.Dir, held}
	shared = s
	return m.Run(), nil
}

// getenv reads a variable of the stack's environment.
func (s *stack) getenv(name string) string { return s.Getenv(name) }

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
	var out, talk bytes.Buffer
	c.Stdout, c.Stderr = &out, &talk
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{args, out.String(), talk.String(), c.ProcessState.ExitCode()}
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
	require.Eventually(t, cond, conditionTimeout, 100*time.Millisecond, what)
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
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.dir)
	eventually(t, "the node becomes active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	return nodeHost, id
}

// agentDir is the folder of a node's agent.
func agentDir(nodeHost string) string { return filepath.Join(shared.dir, "agents", nodeHost) }

// work starts a workload on the node and waits until its agent reports it.
func work(t *testing.T, nodeHost, name string, command ...string) {
	t.Helper()
	spec, err := json.Marshal(map[string]any{"command": command})
	require.NoError(t, err)
	file := filepath.Join(agentDir(nodeHost), "workloads", name+".json")
	require.NoError(t, os.WriteFile(file+".tmp", spec, 0o600))
	require.NoError(t, os.Rename(file+".tmp", file))
	eventually(t, "the agent reports "+name, func() bool {
		for _, w := range show(t, nodeHost).Workloads {
			if w.Name == name {
				return true
			}
		}
		return false
	})
}
