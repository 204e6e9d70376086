package agent

import (
	"log/slog"
	"sync"
	"time"
)

// Clock faults worth a word.
const (
	clockTolerance = 5 * time.Minute
	clockReminder  = time.Hour
)

// serverClock is the time by which the agent judges certificates. What it
// trusts, in this order:
//
//   - the server's time of the last answer, carried on by the local clock's
//     progress. It is told inside TLS, by a server that the CA bundle proves
//     (an answer's server_time, else its Date header). A wrong server time can
//     make the agent ask for a certificate too early or too late; nothing is
//     ever destroyed because of a time;
//   - before the first answer of this process, the local clock, but never
//     earlier than the latest time any server told: time does not run back.
//
// So a local clock that is wrong misleads the agent only until it has spoken to
// the server once. A server cannot be spoken to at all when the local clock is
// outside the life of the server's own certificate; the log says so.
type serverClock struct {
	local func() time.Time
	log   *slog.Logger

	mu        sync.Mutex
	at        time.Time // local, of the last answer
	told      time.Time // by the last answer
	floor     time.Time // the latest told, kept over restarts
	mentioned time.Time // local, when a fault was last logged
}

// now is the time to judge by.
func (c *serverClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	local := c.local()
	if !c.told.IsZero() {
		return c.told.Add(local.Sub(c.at))
	}
	if local.Before(c.floor) {
		return c.floor
	}
	return local
}

// heard takes the server's time from an answer.
func (c *serverClock) heard(told time.Time) {
	if told.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.told = c.local(), told
	if told.After(c.floor) {
		c.floor = told
	}
	off := c.at.Sub(told)
	if off.Abs() <= clockTolerance || !c.mentioned.IsZero() && c.at.Sub(c.mentioned).Abs() < clockReminder {
		return
	}
	c.mentioned = c.at
	c.log.Error("clock of this node is wrong, the server's is used for certificates", "off_by", off.Round(time.Second).String(),
		"local", stamp(c.at), "server", stamp(told), "next", "check time synchronisation on the node")
}

// heardBefore takes the lower bound that a former process stored.
func (c *serverClock) heardBefore(told time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if told.After(c.floor) {
		c.floor = told
	}
}

// latest is the latest time told, for the next process.
func (c *serverClock) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.floor
}

// doubt drops what a server told, step by step, because by that time not even
// the server's own certificate is valid. What is left is the local clock.
func (c *serverClock) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.told.IsZero() {
		c.told = time.Time{}
		return
	}
	c.floor = time.Time{}
}
