package verify

import (
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/text"
)

// Bounds of the trusted time.
const (
	// maxStep is how far a grant may be ahead of the trusted time without another clock that
	// agrees, and how far the trusted time may be ahead of the server's.
	maxStep = 10 * time.Minute
	// healAfter is how long all answers of the server must contradict a trusted time that
	// is ahead before the server's time replaces it.
	healAfter = 15 * time.Minute
	// storeEvery is how far the trusted time advances before it is stored again.
	storeEvery = time.Minute
	timeFile   = "trusted-time.json"
)

// Clock is the time against which tasks are checked: the latest time of a verified
// grant, in this process or a previous one, advanced by the local clock's progress.
// The local clock's reading counts only as a confirmation of a grant that is ahead.
//
// A control plane whose clock was ahead, or a replica that lied, can set it ahead. It
// goes back once the server's answers contradict it for a while. Expired tasks that the
// node has not accepted, and whose sequence is above its floor, could then be replayed in
// the time in between by a replica with a valid lease key.
type Clock struct {
	local func() time.Time
	state *disk.StateDir // nil: not stored
	log   *slog.Logger

	mu     sync.Mutex
	sent   time.Time
	at     time.Time // local, when sent was
	stored time.Time
	ahead  time.Time // local, since when the server's time contradicts; zero if it does not
}

// storedTime is the stored form of the trusted time.
type storedTime struct {
	Time time.Time `json:"time"`
}

// OpenClock makes the clock that starts at the time that a previous process stored,
// or at legacy, where versions before stored it. An unreadable file counts as none.
func OpenClock(local func() time.Time, s disk.StateDir, legacy time.Time, log *slog.Logger) *Clock {
	f := storedTime{Time: legacy}
	if ok, err := s.ReadJSON(s.File(timeFile), &f); err != nil {
		log.Error("cannot read the trusted time, continuing without it", "err", err.Error())
		f.Time = time.Time{}
	} else if !ok {
		f.Time = legacy
	}
	return &Clock{local: local, state: &s, log: log, sent: f.Time, at: local(), stored: f.Time}
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

// later is the time now by a server's time: it does not go back.
func (c *Clock) later(sent time.Time) time.Time {
	if now := c.Now(); now.After(sent) {
		return now
	}
	return sent
}

// admit refuses a grant's time that is too far ahead. server is the server's time as known
// before this answer; it or the local clock may confirm the grant's.
func (c *Clock) admit(sent, server time.Time) error {
	now := c.Now()
	if now.IsZero() || !sent.After(now.Add(maxStep)) {
		return nil
	}
	for _, other := range []time.Time{server, c.local()} {
		if sent.Sub(other).Abs() <= maxStep {
			return nil
		}
	}
	return refusal.New(refusal.GrantTimeAhead, "the grant's time %s is ahead of %s, and no other clock agrees", text.FormatTime(sent), text.FormatTime(now))
}

// observe takes the time of a verified grant.
func (c *Clock) observe(sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.reading(); now.Before(sent) {
		c.set(sent)
	}
	if c.sent.Sub(c.stored) >= storeEvery {
		c.store()
	}
}

func (c *Clock) set(sent time.Time) { c.sent, c.at, c.ahead = sent, c.local(), time.Time{} }

// store stores the time. A failure is only logged: the time that is stored is a lower bound.
func (c *Clock) store() {
	if c.state == nil {
		return
	}
	if err := c.state.WriteJSON(c.state.File(timeFile), storedTime{Time: c.sent.UTC()}); err != nil {
		c.log.Warn("cannot store the trusted time", "err", err.Error())
		return
	}
	c.stored = c.sent
}

// Compare takes the server's time after each answer of the server. Once it was behind the
// trusted time for healAfter, in every answer, it replaces the trusted time.
func (c *Clock) Compare(server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, local := c.reading(), c.local()
	switch {
	case now.Sub(server) <= maxStep:
		c.ahead = time.Time{}
	case c.ahead.IsZero():
		c.ahead = local
	case local.Sub(c.ahead) >= healAfter:
		c.log.Error("the trusted time was ahead of the server's and is set back", "was", text.FormatTime(now), "server", text.FormatTime(server))
		c.set(server)
		c.store()
	}
}
