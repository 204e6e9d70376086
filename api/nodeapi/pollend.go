package nodeapi

import (
	"math/rand/v2"
	"time"
)

// pollGrid is the grid that ends of polls are aligned to. Polls of many nodes
// then end in a few bursts a second, each followed by the next polls with their
// heartbeats: waking the process once per burst costs less CPU than once per node.
const pollGrid = 250 * time.Millisecond

// setSpread is the time in which the open polls end after a new verifier set: each agent then
// loads it.
const setSpread = 5 * time.Second

// behindSpread is the time in which a poll ends that names an older set than the newest one: the
// set was published between two polls of the node, or the node was offline. It is longer than
// setSpread, because a node that cannot load the set polls that often.
const behindSpread = 15 * time.Second

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// pollEnd returns when a poll that starts now ends. It ends up to a twentieth early,
// so the polls of a fleet that reconnected at once spread out, and on pollGrid if
// the wait is long.
func pollEnd(now time.Time, wait time.Duration) time.Time {
	end := now.Add(wait - rand.N(wait/20+1)) //nolint:gosec // load spreading needs no secret
	if wait <= 10*pollGrid {
		return end
	}
	return end.Add(-time.Duration(end.UnixNano() % int64(pollGrid)))
}
