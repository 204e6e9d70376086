package task

import "github.com/gpuaas/gpuaas/schema"

// ReasonCanceled is the reason of an operation that is parked because an
// operator cancelled its task.
const ReasonCanceled = "task_cancelled"

// NoReport is the result of a task that ended, or was given up, without the
// node's report, so that nobody waits for one.
func NoReport(s Status, epoch int64) Result {
	r := Result{LeaseEpoch: epoch, Status: s, Code: schema.KindTaskFailed, Message: "the task was voided"}
	if s == Lost {
		r.Message = "the node that holds the task was not heard of before its lease ended: nobody knows whether it ran"
	}
	return r
}

// Failure is the error that the activity of a task ends with, nil for a task
// that succeeded. It is final: a step is tried again by an operator's decision
// only.
func (r Result) Failure() *schema.Error {
	switch r.Status {
	case Succeeded:
		return nil
	case Lost:
		return schema.NewError(schema.KindTaskFailed, "%s", r.Message).WithReason(ReasonLost)
	case Canceled:
		if r.Message == "" {
			return schema.NewError(schema.KindTaskFailed, "the task was cancelled").WithReason(ReasonCanceled)
		}
		return schema.NewError(schema.KindTaskFailed, "%s", r.Message).WithReason(ReasonCanceled)
	}
	if r.Code == "" || r.Code == schema.KindFenced {
		// Who owns a node is not for the node to say.
		return schema.NewError(schema.KindTaskFailed, "%s", r.Message)
	}
	return schema.NewError(r.Code, "%s", r.Message)
}
