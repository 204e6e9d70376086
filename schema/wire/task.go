package wire

import (
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// TaskOffer is the 200 response to a poll: a task under a new lease.
type TaskOffer struct {
	TaskID string `json:"task_id"`
	// Envelope is the task's DSSE envelope, as signed.
	Envelope json.RawMessage `json:"envelope"`
	Lease    task.Lease      `json:"lease"`
	// Grant is the DSSE envelope of the task.Grant, and GrantKey that of the
	// trust.LeaseKey that signed it.
	Grant    json.RawMessage `json:"grant"`
	GrantKey json.RawMessage `json:"grant_key"`
	// ServerTime lets a node detect that its clock is wrong.
	ServerTime time.Time `json:"server_time"`
}

// ProgressResponse is the 200 response to a progress call.
type ProgressResponse struct {
	// Lease is the extended lease.
	Lease task.Lease `json:"lease"`
	// Cancel asks the agent to stop the task and report its result.
	Cancel bool `json:"cancel,omitempty"`
	// Paused asks the agent to start no further work for this task until a later
	// response clears it. Work in progress continues.
	Paused bool `json:"paused,omitempty"`
}
