// Package evidence describes what the control plane keeps about a node that no repair cured, for the
// vendor of its hardware.
package evidence

import (
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Limits of a bundle.
const (
	MaxTasks    = 50       // of the operation, the newest ones
	MaxOutput   = 16 << 10 // bytes of the output of one task
	MaxEarlier  = 50       // attempts before the operation
	MaxSignals  = 200      // the newest ones
	MaxDocument = 1 << 20  // bytes
)

// Bundle is the evidence of one repair. It holds no secret: no token, no key and no params of a task.
// What the node reported in it is untrusted.
type Bundle struct {
	OperationID string    `json:"operation_id"`
	NodeID      string    `json:"node_id"`
	Host        string    `json:"host"`
	SKU         string    `json:"sku"`
	Region      string    `json:"region,omitempty"`
	Provider    string    `json:"provider"`
	InstanceID  string    `json:"instance_id,omitempty"`
	ExternalID  string    `json:"external_id,omitempty"`
	At          time.Time `json:"at"`
	// Fault is the one for which the node was repaired.
	Fault        recovery.Fault `json:"fault,omitzero"`
	BootID       string         `json:"boot_id,omitempty"`
	AgentVersion string         `json:"agent_version,omitempty"`
	// Facts have the serial numbers of the devices. nil if the node has reported none.
	Facts      *inventory.Facts   `json:"facts,omitempty"`
	Conditions []health.Condition `json:"conditions,omitempty"`
	// Signals are the events of the node before the end of the repair, newest first.
	Signals []health.Signal `json:"signals,omitempty"`
	// Attempts are the rungs of the operation, with the boot IDs and tests that prove them. Earlier are
	// those of the repairs before it, newest first.
	Attempts []recovery.Attempt `json:"attempts,omitempty"`
	Earlier  []recovery.Attempt `json:"earlier,omitempty"`
	// Tasks are those of the operation, newest first.
	Tasks []Task `json:"tasks,omitempty"`
	// Audit is the range of the operation's events in the audit stream of the node.
	Audit AuditRange `json:"audit"`
}

// Task is a task of the repair.
type Task struct {
	TaskID     string      `json:"task_id"`
	Type       task.Type   `json:"type"`
	Status     task.Status `json:"status"`
	Step       string      `json:"step"`
	FinishedAt *time.Time  `json:"finished_at,omitempty"`
	Message    string      `json:"message,omitempty"`
	// Output is omitted if it is longer than MaxOutput.
	Output json.RawMessage `json:"output,omitempty"`
}

// AuditRange are the first and last sequence numbers of the operation's events in a stream, 0 without
// any.
type AuditRange struct {
	Stream string `json:"stream"`
	First  int64  `json:"first"`
	Last   int64  `json:"last"`
}

// Bounded returns the bundle with at most MaxDocument bytes as JSON: it omits the outputs of tasks,
// then the earlier attempts, then the tasks and the facts.
func (b Bundle) Bounded() Bundle {
	for _, cut := range []func(){
		func() {
			b.Tasks = append([]Task{}, b.Tasks...)
			for i := range b.Tasks {
				b.Tasks[i].Output = nil
			}
		},
		func() { b.Earlier, b.Signals = nil, nil },
		func() { b.Tasks, b.Facts = nil, nil },
		func() { b.Conditions, b.Attempts = nil, nil },
	} {
		if raw, err := json.Marshal(b); err == nil && len(raw) <= MaxDocument {
			break
		}
		cut()
	}
	return b
}
