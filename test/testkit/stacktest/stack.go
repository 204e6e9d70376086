package stacktest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/stack"
)

const (
	// Timeout bounds the wait for a condition on a machine that runs several stacks. It exceeds two
	// polls and the heartbeat timeout of an activity.
	Timeout = 3 * time.Minute
	// Every is how often a condition is checked, most of which start a process.
	Every = 500 * time.Millisecond
)

// Stack is a running stack. Folder is the temporary folder of the suite, which has that of the stack.
// Started is a time before the start of the stack.
type Stack struct {
	*stack.Stack

	Folder  string
	Started time.Time
}

// Eventually waits until a condition holds.
func (s *Stack) Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	harness.Poll(t, ok, Timeout, Every, what)
}

// Run runs the command line, requires its success, and returns its output.
func (s *Stack) Run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Command(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, "gpuaas %s\n%s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// Read runs the command line and decodes its output. It reports whether that worked.
func (s *Stack) Read(t *testing.T, into any, args ...string) bool {
	t.Helper()
	out, err := s.Command(t.Context(), append(args, "-o", "json")...).Output()
	return err == nil && json.Unmarshal(out, into) == nil
}

// Node returns a node.
func (s *Stack) Node(t *testing.T, host string) (v wire.NodeView) {
	t.Helper()
	require.True(t, s.Read(t, &v, "node", "show", host), "gpuaas node show %s", host)
	return v
}

// Operation returns the newest operation of a node.
func (s *Stack) Operation(t *testing.T, host string) (v wire.OperationView) {
	t.Helper()
	require.True(t, s.Read(t, &v, "op", "show", host), "gpuaas op show %s", host)
	return v
}

// Enroll registers a node, starts its agent and waits until it is active. The agent's process gets
// the variables, as NAME=value.
func (s *Stack) Enroll(t *testing.T, host, sku string, env ...string) {
	t.Helper()
	s.Run(t, "node", "register", host, "--sku", sku, "--region", "region-1")
	agent := s.Command(t.Context(), "dev", "agent", host, "--detach", "--dir", s.Dir)
	agent.Env = append(agent.Env, env...)
	out, err := agent.CombinedOutput()
	require.NoError(t, err, "%s", out)
	s.Eventually(t, host+" becomes active", func() bool { return s.Node(t, host).State == lifecycle.NodeActive })
}

// StartWorkload gives a node a workload that ends when EndWorkload is called, not at a signal.
func (s *Stack) StartWorkload(t *testing.T, host string) {
	t.Helper()
	harness.StartWorkload(t, s.Stack, host, "job-1", "sh", "-c", `trap : TERM; while [ ! -e `+s.gate(host)+` ]; do sleep 0.1; done`)
}

// Occupy starts the workload and waits until the agent reports it.
func (s *Stack) Occupy(t *testing.T, host string) {
	t.Helper()
	s.StartWorkload(t, host)
	s.Eventually(t, "the agent reports the workload", func() bool { return len(s.Node(t, host).Workloads) == 1 })
}

// EndWorkload ends the workload of StartWorkload.
func (s *Stack) EndWorkload(t *testing.T, host string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.gate(host), nil, 0o600))
}

// gate is the file at which the workload of a node ends.
func (s *Stack) gate(host string) string { return filepath.Join(s.Folder, host+".gate") }
