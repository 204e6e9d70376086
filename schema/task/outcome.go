package task

import "github.com/gpuaas/gpuaas/schema"

// ReasonCanceled is the stuck reason of an operation whose task an operator
// canceled.
const ReasonCanceled = "task_cancelled"

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
	switch r.Status {
	case Succeeded:
		return nil
	case Lost:
		return schema.NewError(schema.KindTaskFailed, "%s", r.Message).WithReason(ReasonLost)
	case Canceled:
		if r.Message == "" {
			return schema.NewError(schema.KindTaskFailed, "the task was canceled").WithReason(ReasonCanceled)
		}
		return schema.NewError(schema.KindTaskFailed, "%s", r.Message).WithReason(ReasonCanceled)
	}
	if r.Code == "" || r.Code == schema.KindFenced {
		// A node must not report that an operation lost its node.
		return schema.NewError(schema.KindTaskFailed, "%s", r.Message)
	}
	return schema.NewError(r.Code, "%s", r.Message)
}
