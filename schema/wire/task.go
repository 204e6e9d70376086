package wire

import (
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Limits and timings of the node API and of tasks, from design/architecture.md
// §7 and interfaces.md §3.
const (
	MaxBodyBytes      = 64 << 10         // request bodies of the node API
	MaxResultBytes    = 1 << 20          // task results
	MaxPollTimeout    = 60 * time.Second // tasks/wait?timeout=
	HeartbeatInterval = 30 * time.Second
	ResultBackoffMin  = 500 * time.Millisecond
	ResultBackoffMax  = 30 * time.Second
	PollBackoffMax    = 60 * time.Second
)

// TaskOffer is the body of a 200 of tasks/wait.
type TaskOffer struct {
	TaskID string `json:"task_id"`
	// Envelope is the DSSE envelope, carried as is.
	Envelope json.RawMessage `json:"envelope"`
	Lease    task.Lease      `json:"lease"`
	// Grant is the DSSE envelope of the Grant, GrantKey that of the
	// LeaseKey it is signed with.
	Grant    json.RawMessage `json:"grant"`
	GrantKey json.RawMessage `json:"grant_key"`
	// ServerTime lets a node with a wrong clock see that it has one.
	ServerTime time.Time `json:"server_time"`

	// Type and CreatedAt are for the server's metrics and are not sent, nor are
	// NodeState and OpSeq, which the grant says.
	Type      task.Type           `json:"-"`
	CreatedAt time.Time           `json:"-"`
	NodeState lifecycle.NodeState `json:"-"`
	OpSeq     int64               `json:"-"`
}

// ProgressResponse tells the agent how long it now holds the task and whether an
// operator wants it stopped.
type ProgressResponse struct {
	Lease  task.Lease `json:"lease"`
	Cancel bool       `json:"cancel,omitempty"`
	// Paused asks the agent to begin nothing new of this task until a later
	// answer says otherwise. What it began goes on.
	Paused bool `json:"paused,omitempty"`
}
