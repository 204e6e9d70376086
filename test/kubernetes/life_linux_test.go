package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

const (
	// host is the node of the stack. Its agent drains the first node of the cluster.
	host = "gpu-1"
	// commandTimeout bounds a command that waits for an operation.
	commandTimeout = 5 * time.Minute
	// commandEvery is how often a condition is checked that starts a process.
	commandEvery = 250 * time.Millisecond
)

// site is a stack with one node, which is a node of a cluster.
type site struct {
	*testing.T
	stack   *stack.Stack
	cluster *kubetest.Cluster
	node    string // its name in the cluster
}

// newSite starts a cluster and a stack, and enrolls the node.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, cluster: kubetest.Start(t)}
	s.node = s.cluster.Nodes()[0]
	folder, err := os.MkdirTemp("", "gpuaas-kubernetes-") //nolint:usetesting // short, and Postgres runs as another user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(folder, 0o711)) // Postgres runs as another user
	bin, err := filepath.Abs("../../bin/gpuaas")
	require.NoError(t, err)
	s.stack, err = stack.Up(t.Context(), bin, filepath.Join(folder, "dev"))
	t.Cleanup(func() { require.NoError(t, errors.Join(s.stack.Down(), os.RemoveAll(folder))) })
	require.NoError(t, err)
	s.run("node", "register", host, "--sku", "cpu-dev", "--region", "local")
	s.agent()
	return s
}

// agent runs the node's agent with the workload driver for Kubernetes.
func (s *site) agent() {
	s.Helper()
	start := []string{"dev", "agent", host, "--detach", "--dir", s.stack.Dir}
	s.run(start...)
	env, err := os.OpenFile(filepath.Join(harness.AgentDir(s.stack, host), "node-agent.env"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(s, err)
	_, err = fmt.Fprintf(env, "GPUAAS_WORKLOAD_DRIVER=kubernetes\nGPUAAS_KUBECONFIG=%s\n", s.cluster.NodeKubeconfig(s, s.node))
	require.NoError(s, errors.Join(err, env.Close()))
	harness.Kill(s, s.stack, "agent/"+host)
	s.run(start...)
	s.eventually("the agent reports its driver", func() bool { return s.show().Driver == inventory.DriverKubernetes })
}

// try runs a command of the CLI and returns all its output.
func (s *site) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.Context(), commandTimeout)
	defer cancel()
	out, err := s.stack.Command(ctx, args...).CombinedOutput()
	return string(out), err
}

func (s *site) run(args ...string) string {
	s.Helper()
	out, err := s.try(args...)
	require.NoError(s, err, "gpuaas %s: %s", strings.Join(args, " "), out)
	return out
}

// parks runs a command whose operation parks for a blocker, and returns the reason.
func (s *site) parks(args ...string) *lifecycle.Stuck {
	s.Helper()
	out, err := s.try(args...)
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(s, ok, "gpuaas %s: %v: %s", strings.Join(args, " "), err, out)
	require.Equal(s, schema.ExitPending, exit.ExitCode(), out)
	return s.parked()
}

// parked returns why the node's operation is parked.
func (s *site) parked() *lifecycle.Stuck {
	s.Helper()
	var o lifecycle.OperationStatus
	require.NoError(s, json.Unmarshal([]byte(s.run("op", "show", host, "-o", "json")), &o))
	require.Equal(s, lifecycle.OperationParked, o.Operation.Status)
	return o.Operation.Stuck
}

func (s *site) show() (n wire.NodeView) {
	s.Helper()
	require.NoError(s, json.Unmarshal([]byte(s.run("node", "show", host, "-o", "json")), &n))
	return n
}

func (s *site) eventually(what string, holds func() bool) {
	s.Helper()
	harness.Poll(s, holds, harness.Timeout, commandEvery, what)
}

func (s *site) unschedulable() bool { return s.cluster.Node(s, s.node).Spec.Unschedulable }

// TestLife drains a node of a cluster through the control plane: a disruption budget blocks the
// drain, more time does not help, the cancellation restores the node, and without the budget the
// drain completes.
func TestLife(t *testing.T) {
	s := newSite(t)
	n := s.cluster.Namespace(t)
	n.Deployment(t, "web", 2, kubetest.Spec{Node: s.node})
	pods := n.Ready(t, "web", 2)
	n.Budget(t, "web", 1)
	s.eventually("the agent reports the pods", func() bool { return len(s.show().Workloads) == len(pods) })
	plan := s.run("node", "drain", host, "--dry-run")
	for _, p := range pods {
		require.Contains(t, plan, n.Name+"/"+p.Metadata.Name)
	}

	drain := []string{"node", "drain", host, "--yes", "--reason", "test", "--deadline", "10s"}
	stuck := s.parks(drain...)
	require.Equal(t, lifecycle.ReasonDrainBlocked, stuck.Reason)
	require.Contains(t, stuck.Message+stuck.Cause, "The disruption budget web needs 1 healthy pods")
	require.True(t, s.unschedulable())
	stuck = s.parks("op", "extend", host, "--reason", "test", "--wait")
	require.Equal(t, lifecycle.ReasonDrainBlocked, stuck.Reason)

	s.run("op", "cancel", host, "--yes", "--reason", "test", "--wait")
	s.eventually("the node is schedulable", func() bool { return !s.unschedulable() })
	n.Ready(t, "web", 2)

	n.DeleteBudget(t, "web")
	s.run(drain...)
	require.Equal(t, lifecycle.NodeDrained, s.show().State)
	require.Empty(t, s.show().Workloads)
	require.True(t, s.unschedulable())
	for _, p := range n.Pods(t) {
		require.Empty(t, p.Spec.NodeName)
	}
	s.run("node", "reactivate", host, "--reason", "test", "--wait")
	s.eventually("the node is schedulable", func() bool { return !s.unschedulable() })
	n.Ready(t, "web", 2)
}
