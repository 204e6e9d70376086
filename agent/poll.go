package agent

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// errEarly is a poll that ended at once without a task: the server is shutting
// down, and asking again without a pause would be a loop.
var errEarly = errors.New("the server ended the poll early")

// fullPause is how long the loop waits for room when the node holds as many
// tasks as it is willing to.
const fullPause = time.Second

// work keeps the identity and asks for tasks until ctx ends or the node is
// removed. Errors are logged and waited out; the delay doubles from half a
// second to a minute and stays there.
func (a *Agent) work(ctx context.Context, begin func()) error {
	wait := backoff{min: a.timing.pollMin, max: a.timing.pollMax}
	begin = sync.OnceFunc(begin)
	for ctx.Err() == nil {
		out := a.Keep(ctx)
		if out.Removed {
			return errRemoved
		}
		if !out.Ready {
			a.lastLoop.Store(a.now().UnixNano())
			a.deps.Clock.Sleep(ctx, min(out.Wait, a.timing.rest)) //nolint:errcheck // the loop's condition looks at ctx
			continue
		}
		begin()
		if a.tasks.full() {
			a.deps.Clock.Sleep(ctx, fullPause) //nolint:errcheck // the loop's condition looks at ctx
			continue
		}
		a.makeRoom(ctx)
		err := a.pollOnce(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.notePoll(err)
		if a.keeper.observe(err) {
			a.explain(err, 0)
			continue
		}
		if err == nil {
			wait.reset()
			continue
		}
		delay := wait.next()
		a.explain(err, delay)
		a.deps.Clock.Sleep(ctx, delay) //nolint:errcheck // the loop's condition looks at ctx
	}
	return ctx.Err()
}

// Poll makes one poll with the identity in use, starts what it brings, and lets
// the keeper learn from how it went. It must not run beside Run or itself, and
// not before a pass of the keeper was Ready.
func (a *Agent) Poll(ctx context.Context) error {
	err := a.pollOnce(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.notePoll(err)
	if err != nil {
		a.explain(err, 0)
	}
	a.keeper.observe(err)
	return err
}

// notePoll leaves the outcome for the status command and the watchdog.
func (a *Agent) notePoll(err error) {
	now := a.now()
	a.lastLoop.Store(now.UnixNano())
	s := PollStatus{At: now.UTC(), OK: err == nil || errors.Is(err, errEarly), PID: os.Getpid(), Version: Version()}
	if !s.OK {
		s.Error = clip(err.Error())
	}
	if err := a.state.hint("poll.json", s); err != nil {
		a.log.Warn("status file does not write", "err", err.Error())
	}
}

// pollOnce is one long poll and what follows from its answer.
func (a *Agent) pollOnce(ctx context.Context) error {
	id, api := a.keeper.inUse.Load(), a.api()
	if id == nil || api == nil {
		return errNoIdentity
	}
	if a.reread.CompareAndSwap(true, false) {
		if err := a.connect(); err != nil {
			a.log.Error("CA bundle does not read, the one in use is kept", "err", err.Error())
		}
		api = a.api()
	}
	q := wire.PollRequest{HeldTasks: a.tasks.journal.have(), AgentSession: a.holder, Nonce: newNonce(), PollSeq: a.polls.Add(1),
		VerifierSet: a.trust.current().version}
	timeout, asked := a.pollFor(id), time.Now()
	got, err := api.wait(ctx, timeout, q)
	if err != nil {
		return err
	}
	// Before anything that may take long.
	fresh := a.tasks.hear(got.news)
	a.trust.follow(ctx, got.set, api.sets)
	now := a.trust.clock.now()
	if err := a.tasks.journal.prune(now); err != nil {
		a.log.Error("journal not pruned", "err", err.Error())
	}
	a.trust.remind(now)
	if got.offer == nil {
		a.log.Info("task wait ended without a task", "held", len(q.HeldTasks))
		if !fresh && timeout >= time.Second && time.Since(asked) < timeout/4 {
			return errEarly
		}
		return nil
	}
	a.keeper.clock.heard(got.offer.ServerTime)
	v := verifier{id: id.id, set: a.trust.current(), nonce: q.Nonce, clock: a.trust.clock, known: a.tasks.journal.holds}
	return a.tasks.offer(ctx, v, *got.offer)
}

// holderName names this process to the server: the machine's boot and the
// process's start. What a holder's name may not hold is left out.
func holderName(bootID string, started time.Time) string {
	keep := func(r rune) rune {
		if r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return r
		}
		return -1
	}
	boot := strings.Map(keep, bootID)
	return boot[:min(len(boot), maxBootID)] + "-" + strconv.FormatInt(started.Unix(), 10)
}

// maxBootID leaves room for the start in a holder's 128 characters.
const maxBootID = 100

// explain says exactly why a poll failed.
func (a *Agent) explain(err error, delay time.Duration) {
	e := schema.AsError(err)
	args := []any{"code", string(e.Kind), "reason", e.Reason, "err", err.Error(), "retry_in", delay.String()}
	if id := a.keeper.inUse.Load(); id != nil {
		args = append(args, "serial", id.facts.Serial, "issuer", id.facts.Issuer, "not_after", id.facts.NotAfter)
	}
	switch {
	case errors.Is(err, errEarly):
		a.log.Info("task wait is repeated after a pause", "retry_in", delay.String())
	case e.Kind == schema.KindInvalidNodeIdentity || e.Kind == schema.KindUnauthenticated:
		a.log.Error("task wait refused, the server does not accept this identity", args...)
	case e.Kind == schema.KindTaskRefused:
		a.log.Warn("task wait goes on after a refused task", args...)
	default:
		a.log.Warn("task wait failed", args...)
	}
}
