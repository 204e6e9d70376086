package lifecycle

import "time"

// Timings of dispatch, from design/architecture.md §7 and trust.md C6.
const (
	// ReclaimInterval is the interval of the reclaimer's schedule.
	ReclaimInterval = 30 * time.Second
	// ReclaimRunTimeout ends a run of the reclaimer that hangs, so that it does
	// not keep the next ones from starting.
	ReclaimRunTimeout = 3 * time.Minute
)

// WorkflowReclaim is the workflow type of the reclaimer, ScheduleReclaim the id
// of its schedule and VerbReclaim the verb of its workflow ID.
const (
	WorkflowReclaim = "ReclaimStaleDispatch"
	ScheduleReclaim = "reclaim-stale-dispatch"
	VerbReclaim     = "reclaim-stale-dispatch"
)
