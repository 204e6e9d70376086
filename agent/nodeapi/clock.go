package nodeapi

import (
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
)

// Clock faults that are logged.
const (
	// ClockTolerance is the difference between the node's clock and the server's time that is
	// no fault.
	ClockTolerance = 5 * time.Minute
	clockReminder  = time.Hour
	// floorHealsAfter is how long all answers must contradict a floor that is ahead before
	// they replace it. One wrong answer would otherwise make each removal expire.
	floorHealsAfter = 15 * time.Minute
)

// Clock is the time against which the agent checks certificates. It uses, in this
// order:
//
//   - the server's time of the latest answer, advanced by the local clock's
//     progress. It arrives inside TLS, from a server that the CA bundle verifies
//     (an answer's server_time, else its Date header). A wrong server time can
//     make the agent request a certificate too early or too late; no time makes
//     it destroy anything;
//   - before the first answer of this process, the local clock, but never a time
//     before the latest that any server sent.
//
// A wrong local clock therefore misleads the agent only until its first answer. No
// connection is possible while the local clock is outside the validity of the server's
// own certificate; the log says so.
type Clock struct {
	local func() time.Time
	log   *slog.Logger

	mu     sync.Mutex
	at     time.Time // local, of the last answer
	sent   time.Time // by the last answer
	floor  time.Time // the latest sent, by any process
	ahead  time.Time // local, since when all answers contradict floor; zero if they do not
	warned time.Time // local, when a fault was last logged
}

// NewClock makes the clock of a process that has no answer yet.
func NewClock(local func() time.Time, log *slog.Logger) *Clock {
	return &Clock{local: local, log: log}
}

// Now returns the time against which certificates are checked.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	local := c.local()
	if !c.sent.IsZero() {
		return c.sent.Add(local.Sub(c.at))
	}
	if local.Before(c.floor) {
		return c.floor
	}
	return local
}

// Observe takes the server's time from an answer.
func (c *Clock) Observe(sent time.Time) {
	if sent.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.sent = c.local(), sent
	c.raise(sent)
	off := c.at.Sub(sent)
	if off.Abs() <= ClockTolerance || !c.warned.IsZero() && c.at.Sub(c.warned).Abs() < clockReminder {
		return
	}
	c.warned = c.at
	c.log.Error("clock of this node is wrong, the server's time is used for certificates", "off_by", off.Round(time.Second).String(),
		"local", text.FormatTime(c.at), "server", text.FormatTime(sent), "next", "check time synchronization on the node")
}

// raise takes the server's time as the floor, or lowers a floor that is too far ahead. It is
// called under the lock.
func (c *Clock) raise(sent time.Time) {
	switch {
	case c.floor.Sub(sent) <= ClockTolerance:
		c.ahead = time.Time{}
		if sent.After(c.floor) {
			c.floor = sent
		}
	case c.ahead.IsZero():
		c.ahead = c.at
	case c.at.Sub(c.ahead) >= floorHealsAfter:
		c.floor, c.ahead = sent, time.Time{}
	}
}

// Offset is the node's clock minus the server's by the latest answer. ok is false before the first.
func (c *Clock) Offset() (offset time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.Sub(c.sent), !c.sent.IsZero()
}

// Local is the clock of the node.
func (c *Clock) Local() time.Time { return c.local() }

// Restore takes the lower bound that a previous process stored.
func (c *Clock) Restore(floor time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if floor.After(c.floor) {
		c.floor = floor
	}
}

// Floor is the latest time that a server sent, for the next process. It goes back once the
// server's answers contradict it for a while.
func (c *Clock) Floor() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.floor
}

// doubt drops the server's time, step by step, because by that time not even the
// server's own certificate is valid. The local clock remains.
func (c *Clock) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sent.IsZero() {
		c.sent = time.Time{}
		return
	}
	c.floor = time.Time{}
}
