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

// The names of the reclaimer: its workflow type, its schedule and the workflow ID of
// the schedule's runs.
const (
	WorkflowReclaim   = "ReclaimStaleDispatch"
	ScheduleReclaim   = "reclaim-stale-dispatch"
	ReclaimWorkflowID = "fleet:" + ScheduleReclaim + ":schedule"
)
