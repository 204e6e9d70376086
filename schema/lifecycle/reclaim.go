package lifecycle

import "time"

// Timings of the reclaimer.
const (
	// ReclaimInterval is the interval of the reclaimer's schedule.
	ReclaimInterval = 30 * time.Second
	// ReclaimRunTimeout ends a run of the reclaimer that hangs, so that it does
	// not block the next ones.
	ReclaimRunTimeout = 3 * time.Minute
)

// WorkflowReclaim is the workflow type of the reclaimer, ScheduleReclaim the id
// of its schedule and the verb of its workflow ID.
const (
	WorkflowReclaim = "ReclaimStaleDispatch"
	ScheduleReclaim = "reclaim-stale-dispatch"
)
