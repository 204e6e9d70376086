package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// TestKillDuringDrain kills our processes with SIGKILL during a drain, separately and
// all at once, and restarts them. The drain completes, the workload is asked to stop
// once, and the audit has one event per change.
func TestKillDuringDrain(t *testing.T) {
	cases := map[string][]string{
		"worker": {"worker"}, "api": {"api"}, "agent": {"agent"}, "all": {"worker", "api", "agent"},
	}
	for name, victims := range cases {
		t.Run(name, func(t *testing.T) {
			nodeHost, id := enrolled(t, "kill-"+name)
			// The workload stops when the file appears, so the kill happens during the
			// drain.
			gate := filepath.Join(t.TempDir(), "go")
			startWorkload(t, nodeHost, "job-1", "sh", "-c", `trap "while [ ! -e `+gate+` ]; do sleep 0.1; done; exit 0" TERM; while :; do sleep 0.1; done`)
			ok(t, "node", "drain", nodeHost, "--yes", "--no-wait")
			eventually(t, "the workload is asked to stop", func() bool { return len(stops(t, nodeHost, "job-1")) == 1 })

			for _, v := range victims {
				kill(t, v, nodeHost)
			}
			ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
			ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
			require.NoError(t, os.WriteFile(gate, nil, 0o600))

			eventually(t, "drained", func() bool { return show(t, nodeHost).State == lifecycle.NodeDrained })
			require.Len(t, stops(t, nodeHost, "job-1"), 1, "the workload was asked to stop more than once")
			require.Empty(t, show(t, nodeHost).Workloads)
			requireOneEventPerChange(t, id)
			record(t, id, "kill-"+name)
		})
	}
}

// kill kills a part with SIGKILL. If the test fails, its end restarts the stack for the
// other tests.
func kill(t *testing.T, name, nodeHost string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			eventually(t, "the stack is up again", func() bool { return run(t, "dev", "up", "--detach", "--dir", shared.Dir).code == schema.ExitDone })
		}
	})
	if name == "agent" {
		name = "agent/" + nodeHost
	}
	harness.Kill(t, shared.Stack, name)
}

// stops returns how often the workload was asked to stop, from the agent's
// journal.
func stops(t *testing.T, nodeHost, name string) []json.RawMessage {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(agentDir(nodeHost), "workloads", name+".state"))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	var state struct {
		Stops []json.RawMessage `json:"stops"`
	}
	require.NoError(t, json.Unmarshal(raw, &state))
	return state.Stops
}

// requireOneEventPerChange verifies that the audit contains each change once.
func requireOneEventPerChange(t *testing.T, id string) {
	t.Helper()
	ok(t, "audit", "--verify")
	seen := map[string]int{}
	for _, e := range auditEvents(t, id) {
		seen[strings.Join([]string{e.Action, e.Target, e.Result, e.OperationID, e.Detail["from"], e.Detail["to"], e.Detail["lease"]}, " ")]++
	}
	for row, n := range seen {
		if strings.HasPrefix(row, audit.IdentityRefused) {
			continue
		}
		require.Equal(t, 1, n, row)
	}
	require.NotEmpty(t, seen)
}

func auditEvents(t *testing.T, id string) []audit.Row {
	t.Helper()
	return decode[wire.AuditPage](t, ok(t, "audit", "--node", id, "--limit", "0", "-o", "json")).Events
}
