package task

import (
	"cmp"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// NoReport is the result of a task that was voided or lost without a report from
// the node. It ends the activity that waits for one.
func NoReport(s Status, epoch int64) Result {
	r := Result{LeaseEpoch: epoch, Status: s, Code: schema.KindTaskFailed, Message: "the task was voided"}
	if s == Lost {
		r.Message = "the lease expired without a report from the node; the task may or may not have run"
	}
	return r
}

// Failure is the error of the activity that waits for the task, nil for a task
// that succeeded. It is not retryable: only an operator's decision repeats the
// step.
func (r Result) Failure() *schema.Error {
	code, message, reason := r.Code, r.Message, ""
	switch r.Status {
	case Succeeded:
		return nil
	case Lost:
		code, reason = schema.KindTaskFailed, lifecycle.ReasonTaskLost
	case Canceled:
		code, reason, message = schema.KindTaskFailed, lifecycle.ReasonTaskCanceled, cmp.Or(message, "the task was canceled")
	}
	if code == "" || code == schema.KindFenced { // a node must not report that an operation lost its node
		code = schema.KindTaskFailed
	}
	return schema.NewError(code, "%s", message).WithReason(reason)
}
