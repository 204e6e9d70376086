package verify

import (
	"sync"
	"time"
)

// Clock is the time that tasks are judged by: the latest that a verified
// grant sent, here or in a former process, carried on by the progress of the
// local clock, whose reading counts for nothing.
type Clock struct {
	local func() time.Time

	mu   sync.Mutex
	sent time.Time
	at   time.Time // local, when sent was
}

// NewClock makes the clock that starts at the floor that a former process
// stored.
func NewClock(local func() time.Time, floor time.Time) *Clock {
	return &Clock{local: local, sent: floor, at: local()}
}
