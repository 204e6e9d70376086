package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// HeartbeatRequest is the body of POST /internal/v1/nodes/{node_id}/heartbeat.
// The agent sends it every HeartbeatInterval and whenever its workloads change.
// The response is 204.
type HeartbeatRequest struct {
	AgentVersion  string          `json:"agent_version"`
	UptimeSeconds int64           `json:"uptime_seconds"`
	BootID        string          `json:"boot_id"`
	Cordoned      bool            `json:"cordoned"`
	Workloads     []task.Workload `json:"workloads"`
	// Phase is starting or ready.
	Phase string    `json:"phase"`
	At    time.Time `json:"at"` // the node's clock, used only to measure its skew
}
