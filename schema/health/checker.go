package health

import "time"

// Result is what a check found.
type Result struct {
	Component string
	Status    Status
	// Reason is one of the checker's constants: it is the label result of the metrics.
	Reason string
	Code   int
	Repair Repair
	Detail string
}

// Checker checks one aspect of a node on a sample of type S. A checker has no state: the time for
// which its condition lasts is kept per checker and component; see Tracker.
type Checker[S any] interface {
	// Name is the checker's stable name.
	Name() string
	// Threshold is how long a condition of the checker must be unhealthy before a repair.
	Threshold() time.Duration
	// Applies reports whether the checker concerns the node. A checker that does not is skipped.
	Applies(sample S) bool
	// Check returns one result for the node or one for each component.
	Check(sample S) []Result
}
