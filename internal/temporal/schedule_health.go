package temporal

import "time"

// ScheduleState says how a schedule does.
type ScheduleState string

// The states of the reclaimer's schedule. All but the first need somebody.
const (
	ScheduleRuns    ScheduleState = "runs"
	ScheduleAbsent  ScheduleState = "absent"
	SchedulePaused  ScheduleState = "paused"
	ScheduleFailing ScheduleState = "failing" // its last run that ended did not succeed
	ScheduleStalled ScheduleState = "stalled" // it should have run and did not
)

// ScheduleHealth is how the reclaimer's schedule does.
type ScheduleHealth struct {
	State ScheduleState `json:"state"`
	// Message says it in a sentence, Next what to type; both are empty while it
	// runs.
	Message string `json:"message,omitempty"`
	Next    string `json:"next,omitempty"`
	// LastRunAt is when it last began a run, null before the first.
	LastRunAt *time.Time `json:"last_run_at"`
	// Skipped counts the runs left out because one was under way, Missed those
	// that Temporal was away for.
	Skipped int `json:"skipped"`
	Missed  int `json:"missed"`
}
