package e2e

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// budget is the limit of one operation: billable actions, by the server's own
// counter, and events in its history.
type budget struct{ actions, events int }

// TestLifecycle runs a node through its lifecycle and compares each operation with its
// budget. It runs alone, because the server's counter covers the whole namespace. An
// activity that a busy machine retries and a run that an earlier test left count too,
// so a lifecycle that is over a budget runs again with another node. Such actions only
// add to the count: an operation that needs more than its budget fails each time.
func TestLifecycle(t *testing.T) {
	pauseSchedules(t)
	const tries = 3
	var always map[int]string
	for try := range tries {
		over := runLifecycle(t, fmt.Sprintf("life-%d", try))
		if try == 0 {
			always = maps.Clone(over)
		}
		maps.DeleteFunc(always, func(command int, _ string) bool { return over[command] == "" })
		if len(always) == 0 {
			return
		}
		t.Logf("lifecycle %d is over its budget: %v", try, over)
	}
	require.Empty(t, always, "operations that are over their budget in each lifecycle")
}

// lifecycleCommand is one command of a node's lifecycle.
type lifecycleCommand struct {
	args   []string
	state  lifecycle.NodeState
	budget budget
	before func()
}

// runLifecycle runs a new node through its lifecycle and returns the cost of each
// operation that was over its budget of actions, by the index of its command.
func runLifecycle(t *testing.T, name string) map[int]string {
	t.Helper()
	over := map[int]string{}
	nodeHost, id := register(t, name)
	require.Equal(t, lifecycle.NodeRegistered, show(t, nodeHost).State)
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
	eventually(t, "active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	for i, c := range lifecycleCommands(t, nodeHost) {
		if c.before != nil {
			c.before()
		}
		before := actions(t)
		done := act(t, c.args...)
		require.Equal(t, lifecycle.OperationCompleted, done.Operation.Status, c.args)
		require.Equal(t, c.state, show(t, id).State, c.args)
		spent, types := actionsSince(t, before)
		events := historyLength(t, done.Operation)
		cost := fmt.Sprintf("%s: %d billable actions %v, %d events", done.Operation.Action, spent, types, events)
		t.Log(cost)
		if spent > c.budget.actions {
			over[i] = cost
		}
		require.LessOrEqual(t, events, c.budget.events, "%s has too many events", done.Operation.Action)
		for _, p := range done.Operation.Phases {
			require.Equal(t, lifecycle.PhaseCompleted, p.State, "%s/%s", done.Operation.Action, p.Name)
		}
	}
	for _, v := range tasksOf(t, id) {
		requireSigned(t, v)
	}
	require.Equal(t, lifecycle.InstanceTerminated, show(t, id).Instance.State)
	ok(t, "audit", "--verify")
	record(t, id, "life")
	return over
}

func lifecycleCommands(t *testing.T, nodeHost string) []lifecycleCommand {
	t.Helper()
	return []lifecycleCommand{
		{args: []string{"node", "provision", nodeHost}, state: lifecycle.NodeActive, budget: budget{30, 70}},
		{args: []string{"node", "drain", nodeHost, "--yes", "--cordon-only"}, state: lifecycle.NodeActive, budget: budget{12, 25}},
		{args: []string{"node", "uncordon", nodeHost}, state: lifecycle.NodeActive, budget: budget{12, 25}},
		{args: []string{"node", "quarantine", nodeHost}, state: lifecycle.NodeQuarantined, budget: budget{12, 25}},
		{args: []string{"node", "release", nodeHost}, state: lifecycle.NodeActive, budget: budget{16, 40}},
		{
			args: []string{"node", "drain", nodeHost, "--yes"}, state: lifecycle.NodeDrained, budget: budget{16, 40},
			before: func() { startWorkload(t, nodeHost, "job-1", "sleep", "3600") },
		},
		{args: []string{"node", "retire", nodeHost, "--yes"}, state: lifecycle.NodeRetired, budget: budget{12, 25}},
		{args: []string{"node", "reactivate", nodeHost}, state: lifecycle.NodeActive, budget: budget{16, 40}},
		{args: []string{"node", "retire", nodeHost, "--yes"}, state: lifecycle.NodeRetired, budget: budget{12, 25}},
		{args: []string{"node", "remove", nodeHost, "--yes"}, state: lifecycle.NodeRemoved, budget: budget{10, 25}},
	}
}

// TestBusyNodeAndForce: retire rejects a busy node, a drain that cannot stop a workload
// parks and names it, and force kills the workload.
func TestBusyNodeAndForce(t *testing.T) {
	nodeHost, id := enrolled(t, "busy")
	startWorkload(t, nodeHost, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)

	refused := run(t, "node", "retire", nodeHost, "--yes", "-o", "json")
	require.Equal(t, schema.ExitRefused, refused.code)
	envelope := decode[schema.ErrorBody](t, refused)
	require.Equal(t, schema.KindNodeInUse, envelope.Error.Code)
	require.Contains(t, envelope.Error.Message, "stubborn")

	parked := run(t, "node", "drain", nodeHost, "--yes", "--deadline", "2s", "--wait", "-o", "json")
	require.Equal(t, schema.ExitPending, parked.code, parked.stderr)
	stuck := decode[lifecycleStep](t, parked).Operation.Stuck
	require.NotNil(t, stuck)
	require.Equal(t, "drain_blocked", stuck.Reason)
	require.Contains(t, stuck.Message, "stubborn")
	require.Contains(t, ok(t, "stuck", "--limit", "0").stdout, nodeHost)
	shown := currentDetails(t, id)
	require.Contains(t, shown, "stubborn", "the Web UI does not name the blocker")
	require.Contains(t, shown, "gpuaas op force "+nodeHost, "the Web UI does not show the command")

	ok(t, "op", "force", nodeHost, "--reason", "the owner agreed", "--yes")
	eventually(t, "drained", func() bool { return show(t, nodeHost).State == lifecycle.NodeDrained })
	require.Empty(t, show(t, nodeHost).Workloads)
	record(t, id, "force")
}

// TestCancelRestores: canceling a waiting drain restores the node.
func TestCancelRestores(t *testing.T) {
	nodeHost, id := enrolled(t, "cancel")
	startWorkload(t, nodeHost, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	ok(t, "node", "drain", nodeHost, "--yes", "--no-wait")
	eventually(t, "the drain waits for the workload", func() bool { return inPhase(t, nodeHost, lifecycle.PhaseDrain) })
	ok(t, "op", "cancel", nodeHost, "--reason", "wrong node")
	eventually(t, "active again", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	node := show(t, nodeHost)
	require.False(t, node.Cordoned)
	require.Len(t, node.Workloads, 1)
	record(t, id, "cancel")
}

// inPhase reports whether the node's operation is in a phase.
func inPhase(t *testing.T, nodeHost, phase string) bool {
	t.Helper()
	r := run(t, "op", "show", nodeHost, "-o", "json")
	if r.code != 0 {
		return false
	}
	for _, p := range decode[lifecycle.OperationStatus](t, r).Operation.Phases {
		if p.Name == phase {
			return p.State == lifecycle.PhaseRunning
		}
	}
	return false
}
