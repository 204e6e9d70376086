package lifecycle

import "time"

// OverdueAfter is how long after its phase's deadline an operation that has not parked
// counts as overdue.
const OverdueAfter = time.Minute

// Overdue describes an operation that no worker moves: it is past its phase's deadline and
// has not parked.
func Overdue(phase string, since time.Time) Stuck {
	return Stuck{Phase: phase, WaitingOn: AttentionOperator, Reason: "overdue", Since: since,
		Message: "it runs longer than its phase may and has not parked", Cause: "no worker is running"}
}

// maxMissing is how many runs may be missing whatever their share of the open ones.
const maxMissing = 5

// TooManyMissing reports whether Temporal does not have so many of the runs of open
// operations that the cause is probably a wrong address or namespace.
func TooManyMissing(missing, open int) bool { return missing > maxMissing && 2*missing > open }
