package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// beatSlack is how long before a heartbeat is due a poll is to end: what its
	// answer may be late.
	beatSlack = 2 * time.Second
	// beatPatience is how long a poll waits for the heartbeat before it. One
	// that takes longer goes on beside the poll.
	beatPatience = 3 * time.Second
)

// pulse times the heartbeats. One goroutine sends them all, so that none
// overtakes another; the poll loop makes room for them between two polls, where
// they need no connection of their own.
type pulse struct {
	room chan chan<- struct{} // closed by the sender when the room is not needed any more

	mu    sync.Mutex
	due   time.Time // of the next one; zero while nobody sends any
	begun time.Time // of the one under way; zero when none is
}

func newPulse() *pulse { return &pulse{room: make(chan chan<- struct{})} }

// start makes the first one due.
func (p *pulse) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Now()
}

// begin notes that a heartbeat begins and when the next one is due.
func (p *pulse) begin(next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = time.Now()
	p.due = p.begun.Add(next)
}

func (p *pulse) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = time.Time{}
}

// left is the time until the next heartbeat is due. ok is false where nobody
// sends any, and while one is under way: it may hang, and polls go on.
func (p *pulse) left() (left time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.due), !p.due.IsZero() && p.begun.IsZero()
}

// soon reports whether what is left is hardly worth a poll: the heartbeat goes
// first.
func (p *pulse) soon(t timing) bool {
	left, ok := p.left()
	return ok && left < min(t.heartbeat/3, t.pollTimeout)
}

// hold is how long the next poll waits for a heartbeat at most.
func (p *pulse) hold(t timing) time.Duration {
	if p.soon(t) {
		return beatPatience
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun.IsZero() {
		return 0
	}
	return beatPatience - time.Since(p.begun)
}

// heartbeats tells the server how the node is: between two polls when that is
// soon enough, every 30 s at the latest, and at once when the workloads or the
// cordon changed. A lost heartbeat is not repeated: the next one says more. The
// second one comes early by up to a half, so that nodes that started together are
// not heard of together for ever.
func (a *Agent) heartbeats(ctx context.Context) {
	due := time.NewTimer(0)
	defer due.Stop()
	every := a.timing.heartbeat
	in := every/2 + a.deps.Draw.upTo(every/2)
	for {
		var room chan<- struct{}
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		case <-a.changed:
		case room = <-a.pulse.room:
		}
		if room == nil || a.pulse.soon(a.timing) {
			a.pulse.begin(in)
			a.heartbeat(ctx)
			a.pulse.end()
			in = every
		}
		if room != nil {
			close(room)
		}
		left, _ := a.pulse.left()
		due.Reset(left)
	}
}

// makeRoom lets a heartbeat that is due before long, or under way, go before the
// next poll.
func (a *Agent) makeRoom(ctx context.Context) {
	hold := a.pulse.hold(a.timing)
	if hold <= 0 {
		return
	}
	done := make(chan struct{})
	limit := time.NewTimer(hold)
	defer limit.Stop()
	select {
	case a.pulse.room <- done:
	case <-limit.C:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// pollFor is how long a poll with the version may wait: not past the time when
// the keeper has something to do about it, and not into the next heartbeat.
func (a *Agent) pollFor(v *version) time.Duration {
	timeout := a.keeper.pollFor(v)
	if left, ok := a.pulse.left(); ok {
		timeout = min(timeout, max(left-beatSlack, time.Second))
	}
	return timeout
}

func (a *Agent) heartbeat(ctx context.Context) {
	if a.keeper.silent(a.now()) {
		return
	}
	err := a.beat(ctx, a.api())
	switch {
	case err == nil || ctx.Err() != nil:
	case isRemoved(err):
		a.stop(err)
	default:
		a.log.Warn("heartbeat not delivered", "err", err.Error())
	}
}

// beat delivers one heartbeat: an authenticated call that has no effect on the
// node's work.
func (a *Agent) beat(ctx context.Context, api *client) error {
	list, err := a.workloads.List(ctx)
	if err != nil {
		return fmt.Errorf("listing workloads: %w", err)
	}
	up := uptime("/")
	if up == 0 {
		up = int64(a.now().Sub(a.started).Seconds())
	}
	return api.heartbeat(ctx, wire.HeartbeatRequest{
		AgentVersion: Version(), UptimeSeconds: up, BootID: a.bootID,
		Cordoned: a.flags.Cordoned(), Workloads: list, Phase: "ready", At: a.now().UTC(),
	})
}

// change asks for a heartbeat at once; several changes make one.
func (a *Agent) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
