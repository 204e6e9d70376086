package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// part is one thing that the stack consists of. A part that is not ours has no
// prepare; one that is no process of its own (the Web UI) names its process's.
type part struct {
	name string
	// process is the part whose process it is. Defaults to name.
	process string
	address string // where it answers, for people and scripts
	// uses are the ports that it needs for itself.
	uses []portUse
	// prepare makes what it needs on disk and answers its command. It is called
	// only when the part is about to start, and may be called again.
	prepare func(ctx context.Context) (command, error)
	healthy probe
	// ready ends a start. Defaults to healthy.
	ready probe
	// within bounds a start. Defaults to a minute: machines may be busy.
	within time.Duration
	// stop is how to end it. Defaults to gentle.
	stop []stopStep
	// again is how long it is started again when it ends before it is healthy.
	again time.Duration
}

type portUse struct {
	what string
	port int
}

// ours reports whether the stack starts and stops the part.
func (p part) ours() bool { return p.prepare != nil }

func (p part) owner() string {
	if p.process != "" {
		return p.process
	}
	return p.name
}

// once runs a probe.
func (p probe) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeBudget)
	defer cancel()
	return p(ctx)
}

// bring makes the part healthy: it waits for one that runs and starts one that
// does not. It reports whether it started a process.
func (p part) bring(ctx context.Context, l layout) (started bool, err error) {
	if !p.ours() {
		return false, p.checkExternal(ctx)
	}
	if id, ok := l.running(p.name); ok {
		err = p.await(ctx, l, func() bool { return !id.alive() })
		if !errors.Is(err, errEnded()) { // one that was just killed may seem to run for a moment
			return false, err
		}
	}
	if err = p.start(ctx, l); err == nil || p.again == 0 {
		return true, err
	}
	until(ctx, p.again, func() bool {
		if !errors.Is(err, errEnded()) {
			return true
		}
		err = p.start(ctx, l)
		return err == nil
	})
	return true, err
}

// errEnded is the error of a part that ended before it was healthy.
func errEnded() *schema.Error { return &schema.Error{Kind: schema.KindInternal, Reason: "part_ended"} }

func (p part) checkExternal(ctx context.Context) error {
	if err := p.healthy.once(ctx); err != nil {
		return schema.NewError(schema.KindServiceUnavailable,
			"%s at %s, named by the environment, does not answer: %v", p.name, p.address, err).
			WithNext("start it, or unset its variable and gpuaas dev up starts one of its own")
	}
	return nil
}

// start runs the part's process and waits until it is healthy. A process that
// does not get there is ended.
func (p part) start(ctx context.Context, l layout) error {
	c, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	id, ended, err := spawn(c, l.logPath(p.name))
	if err != nil {
		return err
	}
	if err := l.remember(runFile{Part: p.name, identity: id, Program: c.path}); err != nil {
		return errors.Join(err, id.stop(context.WithoutCancel(ctx), p.steps()))
	}
	err = p.await(ctx, l, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if err != nil {
		return errors.Join(err, p.end(context.WithoutCancel(ctx), l, id))
	}
	return nil
}

// end stops the part's process and forgets it.
func (p part) end(ctx context.Context, l layout, id identity) error {
	if err := id.stop(ctx, p.steps()); err != nil {
		return err
	}
	return l.forget(p.name)
}

func (p part) steps() []stopStep {
	if p.stop != nil {
		return p.stop
	}
	return gentle()
}

// await waits until the part is healthy; it gives up when the process ended.
func (p part) await(ctx context.Context, l layout, ended func() bool) error {
	within := p.within
	if within == 0 {
		within = time.Minute
	}
	ready := p.ready
	if ready == nil {
		ready = p.healthy
	}
	var last error
	gone := false
	until(ctx, within, func() bool {
		if last = ready.once(ctx); last == nil {
			return true
		}
		gone = ended()
		return gone
	})
	switch {
	case last == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case gone:
		return fault("read its log", "%s ended before it was ready%s", p.name, tail(l.logPath(p.name))).
			WithReason(errEnded().Reason)
	}
	return fault("read its log: "+l.logPath(p.name)+"; gpuaas dev down stops it",
		"%s is not ready after %s: %v", p.name, within, last)
}

// tail answers the end of a log, for an error's text.
func tail(file string) string {
	const lines, size = 8, 4 << 10
	raw, err := os.ReadFile(file)
	if err != nil {
		return " (" + err.Error() + ")"
	}
	raw = raw[max(0, len(raw)-size):]
	all := strings.Split(string(bytes.TrimSpace(raw)), "\n")
	all = all[max(0, len(all)-lines):]
	return fmt.Sprintf("; the end of %s:\n  %s", file, strings.Join(all, "\n  "))
}
