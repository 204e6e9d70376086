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

// NewClock makes the clock that starts at the floor that a previous process
// stored.
func NewClock(local func() time.Time, floor time.Time) *Clock {
	return &Clock{local: local, sent: floor, at: local()}
}

// Now is zero before the first grant.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading()
}

func (c *Clock) reading() time.Time {
	if c.sent.IsZero() {
		return time.Time{}
	}
	return c.sent.Add(max(c.local().Sub(c.at), 0))
}

// later is the time now by a server's time: it never goes back.
func (c *Clock) later(sent time.Time) time.Time {
	if now := c.Now(); now.After(sent) {
		return now
	}
	return sent
}

// observe takes the time of a verified grant.
func (c *Clock) observe(sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.reading(); now.Before(sent) {
		c.sent, c.at = sent, c.local()
	}
}
