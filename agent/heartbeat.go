package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/schema/build"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// heartbeatSlack is how long before a heartbeat is due a poll ends, because its
	// answer may be late.
	heartbeatSlack = 2 * time.Second
	// heartbeatWait limits how long a poll waits for a heartbeat. A heartbeat
	// that takes longer continues beside the poll.
	heartbeatWait = 3 * time.Second
)

// heartbeatScheduler schedules the heartbeats. One goroutine sends all of them, so that
// they stay in order. The poll loop lets one be sent between two polls, where it needs
// no second connection.
type heartbeatScheduler struct {
	turns chan chan<- struct{} // the poll loop offers one; closed when the heartbeat is done

	mu    sync.Mutex
	due   time.Time // of the next one; zero before the first
	begun time.Time // of the one under way; zero when none is
}

func newHeartbeatScheduler() *heartbeatScheduler {
	return &heartbeatScheduler{turns: make(chan chan<- struct{})}
}

// start makes the first one due.
func (p *heartbeatScheduler) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Now()
}

// begin records the start of a heartbeat and when the next one is due.
func (p *heartbeatScheduler) begin(next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = time.Now()
	p.due = p.begun.Add(next)
}

func (p *heartbeatScheduler) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = time.Time{}
}

// left is the time until the next heartbeat is due. ok is false
// before the first one, and while one is under way: it may hang, and polls
// continue.
func (p *heartbeatScheduler) left() (left time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.due), !p.due.IsZero() && p.begun.IsZero()
}

// soon reports whether the heartbeat is sent before the next poll, because a poll
// before it would be short.
func (p *heartbeatScheduler) soon(t timing) bool {
	left, ok := p.left()
	return ok && left < min(t.heartbeat/3, t.identity.PollTimeout)
}

// hold is how long the next poll waits for a heartbeat at most.
func (p *heartbeatScheduler) hold(t timing) time.Duration {
	if p.soon(t) {
		return heartbeatWait
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun.IsZero() {
		return 0
	}
	return heartbeatWait - time.Since(p.begun)
}

// heartbeats reports the node's state: between two polls when that is soon enough,
// every 30 s at the latest, and at once when the workloads or the cordon changed. A
// lost heartbeat is not repeated: the next one is newer. The second one comes early
// by up to half the interval, so that nodes that started together spread out.
func (a *Agent) heartbeats(ctx context.Context) {
	due := time.NewTimer(0)
	defer due.Stop()
	every := a.timing.heartbeat
	in := every/2 + a.deps.Jitter.UpTo(every/2)
	for {
		var turn chan<- struct{}
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		case <-a.changed:
		case turn = <-a.schedule.turns:
		}
		if turn == nil || a.schedule.soon(a.timing) {
			a.schedule.begin(in)
			a.heartbeat(ctx)
			a.schedule.end()
			in = every
		}
		if turn != nil {
			close(turn)
		}
		left, _ := a.schedule.left()
		due.Reset(left)
	}
}

// beforePoll waits for a heartbeat that is due soon, or in progress, before the next
// poll.
func (a *Agent) beforePoll(ctx context.Context) {
	hold := a.schedule.hold(a.timing)
	if hold <= 0 {
		return
	}
	done := make(chan struct{})
	limit := time.NewTimer(hold)
	defer limit.Stop()
	select {
	case a.schedule.turns <- done:
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

// pollTimeout is how long a poll with the version may wait: at most until the
// identity needs attention or a heartbeat is due.
func (a *Agent) pollTimeout(v *identity.Version) time.Duration {
	timeout := a.identity.PollTimeout(v)
	if left, ok := a.schedule.left(); ok {
		timeout = min(timeout, max(left-heartbeatSlack, time.Second))
	}
	return timeout
}

func (a *Agent) heartbeat(ctx context.Context) {
	if a.identity.Muted(a.now()) {
		return
	}
	err := a.sendHeartbeat(ctx, a.api())
	switch {
	case err == nil || ctx.Err() != nil:
	case apierror.IsRemoved(err):
		a.stop(err)
	default:
		a.log.Warn("heartbeat not delivered", "err", err.Error())
	}
}

// sendHeartbeat sends one heartbeat: an authenticated call that has no effect on
// the node's work.
func (a *Agent) sendHeartbeat(ctx context.Context, api *nodeapi.Client) error {
	list, err := a.workloads.List(ctx)
	if err != nil {
		return fmt.Errorf("listing workloads: %w", err)
	}
	up := host.Uptime("/")
	if up == 0 {
		up = int64(a.now().Sub(a.started).Seconds())
	}
	return api.Heartbeat(ctx, wire.HeartbeatRequest{
		AgentVersion: build.Version(), UptimeSeconds: up, BootID: a.bootID,
		Cordoned: a.cordon.Cordoned(), Workloads: list, Phase: "ready", At: a.now().UTC(),
	})
}

// change asks for a heartbeat at once; several changes make one.
func (a *Agent) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
