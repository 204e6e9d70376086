package webui

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/deploy/dev/simulate"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// repairScenes are those of a repair. The agents of the stack restart only themselves.
func repairScenes() map[string]scene {
	return map[string]scene{
		lifecycle.ReasonApproval: {host: "gpu-27", park: parkApproval, resolve: resolveByRetry(func(*testing.T, string) {})},
		lifecycle.ReasonNotCured: {host: "gpu-28", park: parkNotCured, resolve: resolveByRetry(func(t *testing.T, host string) { t.Helper(); ill(t, host) })},
		lifecycle.ReasonNoPower:  {host: "gpu-29", park: parkNoPower, resolve: resolveByRetry(startAgent)},
	}
}

// ill gives the node's machine conditions that no restart cures. Without any it works.
func ill(t *testing.T, host string, conditions ...health.Condition) {
	t.Helper()
	faults := simulate.Faults{RebootSeconds: 0.5, Faults: []simulate.Fault{}}
	for _, c := range conditions {
		faults.Faults = append(faults.Faults, simulate.Fault{Sticky: true, Condition: c})
	}
	raw, err := json.Marshal(faults)
	require.NoError(t, err)
	file := filepath.Join(harness.AgentDir(stack.Stack, host), "faults.json")
	require.NoError(t, os.WriteFile(file+".tmp", raw, 0o600))
	require.NoError(t, os.Rename(file+".tmp", file))
}

func fault79() health.Condition {
	return health.Condition{Checker: "gpu_xid", Component: "GPU-1", Reason: "Xid", Code: 79, Repair: health.RepairReboot, Detail: "fell off the bus"}
}

// The policy asks a person before the node restarts.
func parkApproval(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	stack.Run(t, "node", "recover", host, "--rung", "reboot", "--approve", "reboot", "--yes", "--no-wait", "--reason", "XID 79")
}

// The fault outlives the restart.
func parkNotCured(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	ill(t, host, fault79())
	stack.Run(t, "node", "recover", host, "--rung", "reboot", "--yes", "--no-wait", "--reason", "XID 79")
}

// The agent is dead, and no provider has the machine.
func parkNoPower(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	killAgent(t, host)
	silence(t, host)
	stack.Run(t, "node", "recover", host, "--rung", "reboot", "--yes", "--no-wait", "--reason", "it hangs")
}

// silence backdates the last heartbeat of the node, whose agent must be dead or suspended.
func silence(t *testing.T, host string) {
	t.Helper()
	exec(t, "UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	exec(t, "UPDATE nodes SET last_heartbeat_at = now() - interval '10 minutes', state_since = now() - interval '10 minutes' WHERE node_id = $1", stack.Node(t, host).ID)
}

func startAgent(t *testing.T, host string) {
	t.Helper()
	stack.Run(t, "dev", "agent", host, "--detach", "--dir", stack.Dir)
}

// resolveByRetry corrects the cause and types the displayed command that runs the phase again.
func resolveByRetry(correct func(t *testing.T, host string)) func(*testing.T, *page, wire.StuckOperation) {
	return func(t *testing.T, p *page, op wire.StuckOperation) {
		t.Helper()
		command := p.find(`gpuaas op retry \S+ --operation \S+ --phase \S+ --stuck-since \S+ --reason TEXT`)
		correct(t, op.Host)
		words := strings.Fields(strings.Replace(command, lifecycle.ReasonPlaceholder, "corrected", 1))
		stack.Run(t, words[1:]...)
		ended(t, op.Host)
		require.Equal(t, lifecycle.NodeActive, stack.Node(t, op.Host).State)
	}
}
