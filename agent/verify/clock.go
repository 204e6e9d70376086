package verify

import (
	"sync"
	"time"
)

// Clock is the time against which tasks are checked: the latest time of a verified
// grant, in this process or a previous one, advanced by the local clock's progress.
// The local clock's reading itself does not count.
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
