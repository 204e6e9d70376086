package agent

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// errEarly is a poll that ended at once without a task: the server is shutting
// down, and asking again without a pause would be a loop.
var errEarly = errors.New("the server ended the poll early")

// fullPause is how long the loop waits for room when the node holds as many
// tasks as it is willing to.
const fullPause = time.Second

// poll asks for tasks until ctx ends or the node is removed. Errors are logged
// and waited out; the delay doubles from half a second to a minute and stays
// there.
func (a *Agent) poll(ctx context.Context) error {
	wait := backoff{min: a.timing.pollMin, max: a.timing.pollMax}
	for ctx.Err() == nil {
		if a.tasks.full() {
			pause(ctx, fullPause) //nolint:errcheck // the loop's condition looks at ctx
			continue
		}
		err := a.pollOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case isRemoved(err):
			return err
		}
		a.notePoll(err)
		if err == nil {
			wait.reset()
			continue
		}
		delay := wait.next()
		a.explain(err, delay)
		pause(ctx, delay) //nolint:errcheck // the loop's condition looks at ctx
	}
	return ctx.Err()
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

// pollOnce is one long poll and what follows from its answer. The certificate's
// own end is checked first, so that an expired one leads to enrolment and not
// to a stream of refused handshakes.
func (a *Agent) pollOnce(ctx context.Context) error {
	id, err := a.certs.get()
	if err != nil {
		return err
	}
	if err := id.matches(a.conf, a.now()); err != nil {
		a.log.Warn("certificate no longer usable", "err", err.Error())
		if id, err = a.ensureIdentity(ctx); err != nil {
			return err
		}
		if err := a.connect(); err != nil {
			return err
		}
	}
	have, asked := a.tasks.journal.have(), time.Now()
	offer, err := a.api().wait(ctx, a.timing.pollTimeout, have)
	if err != nil {
		return err
	}
	if err := a.tasks.journal.prune(a.now()); err != nil {
		a.log.Error("journal not pruned", "err", err.Error())
	}
	if offer == nil {
		a.log.Info("task wait ended without a task", "held", len(have))
		if time.Since(asked) < a.timing.pollTimeout/4 {
			return errEarly
		}
		return nil
	}
	v := verifier{id: id.id, keys: a.conf.verifiers, now: a.now}
	return a.tasks.offer(ctx, v, *offer)
}

// explain says exactly why a poll failed.
func (a *Agent) explain(err error, delay time.Duration) {
	e := schema.AsError(err)
	args := []any{"code", string(e.Kind), "reason", e.Reason, "err", err.Error(), "retry_in", delay.String()}
	if id, err := a.certs.get(); err == nil {
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
