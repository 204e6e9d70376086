package wire

import "time"

// HeaderIdempotencyKey makes a POST of the admin API safe to repeat: a request with
// a key that was used before returns the result of the first one.
const HeaderIdempotencyKey = "Idempotency-Key"

// Limits on an operator's input, the same in the command line, the admin API and the
// workflows.
const (
	MaxReason         = 500 // characters of a reason
	MaxActor          = 128 // characters of the name of who decides
	MaxIdempotencyKey = 128 // characters of an idempotency key
	MaxDrainDeadline  = 7 * 24 * time.Hour
	MaxStartWithin    = 24 * time.Hour
)

// Page sizes of lists.
const (
	DefaultPage = 100
	MaxPage     = 1000
)
