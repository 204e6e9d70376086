package nodeapi

import (
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// PollRequest is what a poll says about the node that asks for work.
type PollRequest struct {
	// Have are the tasks that the agent's journal holds as accepted or
	// unreported.
	Have []string
	// Holder names the agent's process: its boot id and start.
	Holder string
	// Nonce is random and new for each poll.
	Nonce string
	// Number counts the polls of this process, from 1; 0 when it does not count.
	// Who sends a poll has dealt with the answers to all before it.
	Number int64
}

// TaskHeartbeat is what a task's activity is told about its progress. It becomes the
// heartbeat's details in the Web UI.
type TaskHeartbeat struct {
	Status  task.Status `json:"status"`
	Message string      `json:"message,omitempty"`
	Epoch   int64       `json:"lease_epoch"`
}

// ProgressResult is what a progress call came to.
type ProgressResult struct {
	Response wire.ProgressResponse
	// Owner is set when a heartbeat is due.
	Owner *task.Owner
}

// ActivityState is what an operator did to the activity meanwhile.
type ActivityState struct {
	// Cancel: the activity was cancelled or its run is gone. Paused: it was
	// paused in the Web UI or by the temporal command.
	Cancel bool
	Paused bool
}
