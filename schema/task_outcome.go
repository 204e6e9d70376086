package schema

// ReasonTaskCancelled is the reason of an operation that is parked because an
// operator cancelled its task.
const ReasonTaskCancelled = "task_cancelled"

// NoReport is the result of a task that ended, or was given up, without the
// node's report, so that nobody waits for one.
func NoReport(s TaskStatus, epoch int64) TaskResult {
	r := TaskResult{LeaseEpoch: epoch, Status: s, Code: KindTaskFailed, Message: "the task was voided"}
	if s == TaskLost {
		r.Message = "the node that holds the task was not heard of before its lease ended: nobody knows whether it ran"
	}
	return r
}

// Failure is the error that the activity of a task ends with, nil for a task
// that succeeded. It is final: a step is tried again by an operator's decision
// only.
func (r TaskResult) Failure() *Error {
	switch r.Status {
	case TaskSucceeded:
		return nil
	case TaskLost:
		return NewError(KindTaskFailed, "%s", r.Message).WithReason(ReasonTaskLost)
	case TaskCancelled:
		if r.Message == "" {
			return NewError(KindTaskFailed, "the task was cancelled").WithReason(ReasonTaskCancelled)
		}
		return NewError(KindTaskFailed, "%s", r.Message).WithReason(ReasonTaskCancelled)
	}
	if r.Code == "" || r.Code == KindFenced {
		// Who owns a node is not for the node to say.
		return NewError(KindTaskFailed, "%s", r.Message)
	}
	return NewError(r.Code, "%s", r.Message)
}
