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

// part is one component of the stack. A part that the stack does not manage has no
// prepare. A part that shares a process (the Web UI) names that process's part.
type part struct {
	name string
	// process is the part whose process it is. Defaults to name.
	process string
	address string // where it listens, for people and scripts
	// uses are the ports that it listens on.
	uses []portUse
	// prepare creates the part's files and returns its command. It is called before
	// each start.
	prepare func(ctx context.Context) (command, error)
	healthy probe
	// ready completes a start. Defaults to healthy.
	ready probe
	// startTimeout bounds a start. Defaults to three minutes: the machine may be busy,
	// and a process that exits ends the wait.
	startTimeout time.Duration
	// stopSteps end the process. Defaults to defaultStop.
	stopSteps []stopStep
	// retryFor is how long a process that exits before it is healthy is restarted.
	retryFor time.Duration
}

type portUse struct {
	purpose string
	port    int
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

// ensure waits for a running part to become healthy, or starts it. It reports
// whether it started a process.
func (p part) ensure(ctx context.Context, l layout) (started bool, err error) {
	if !p.ours() {
		return false, p.checkExternal(ctx)
	}
	if id, ok := l.processes().running(p.name); ok {
		err = p.await(ctx, l, func() bool { return !id.alive() })
		if !errors.Is(err, errEnded()) { // a process that was just killed may still appear to run
			return false, err
		}
	}
	if err = p.start(ctx, l); err == nil || p.retryFor == 0 {
		return true, err
	}
	until(ctx, p.retryFor, func() bool {
		if !errors.Is(err, errEnded()) {
			return true
		}
		err = p.start(ctx, l)
		return err == nil
	})
	return true, err
}

// errEnded is the error of a part that exited before it was healthy.
func errEnded() *schema.Error { return &schema.Error{Kind: schema.KindInternal, Reason: "part_ended"} }

func (p part) checkExternal(ctx context.Context) error {
	if err := p.healthy.once(ctx); err != nil {
		return schema.NewError(schema.KindServiceUnavailable,
			"%s at %s (from the environment) is not available: %v", p.name, p.address, err).
			WithNext("start it (if Vault is sealed: vault operator unseal), or unset its variable so that gpuaas dev up starts one")
	}
	return nil
}

// start starts the part's process and waits until it is ready. Otherwise it stops
// the process.
func (p part) start(ctx context.Context, l layout) error {
	c, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	id, ended, err := spawn(c, l.logPath(p.name))
	if err != nil {
		return err
	}
	if err := l.processes().save(runFile{Part: p.name, identity: id, Program: c.path}); err != nil {
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
		return errors.Join(err, p.stop(context.WithoutCancel(ctx), l, id))
	}
	return nil
}

// stop stops the part's process and removes its run file.
func (p part) stop(ctx context.Context, l layout, id identity) error {
	if err := id.stop(ctx, p.steps()); err != nil {
		return err
	}
	return l.processes().remove(p.name)
}

func (p part) steps() []stopStep {
	if p.stopSteps != nil {
		return p.stopSteps
	}
	return defaultStop()
}

// await waits until the part is ready, the process has exited, or the time is up.
func (p part) await(ctx context.Context, l layout, ended func() bool) error {
	within := p.startTimeout
	if within == 0 {
		within = 3 * time.Minute
	}
	ready := p.ready
	if ready == nil {
		ready = p.healthy
	}
	var last error
	exited := false
	until(ctx, within, func() bool {
		if last = ready.once(ctx); last == nil {
			return true
		}
		exited = ended()
		return exited
	})
	switch {
	case last == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case exited:
		return stackError("read its log", "%s exited before it was ready%s", p.name, tail(l.logPath(p.name))).
			WithReason(errEnded().Reason)
	}
	return stackError("read its log: "+l.logPath(p.name)+"; gpuaas dev down stops it",
		"%s is not ready after %s: %v", p.name, within, last)
}

// tail returns the end of a log for an error message.
func tail(file string) string {
	const lines, size = 8, 4 << 10
	raw, err := os.ReadFile(file)
	if err != nil {
		return " (" + err.Error() + ")"
	}
	raw = raw[max(0, len(raw)-size):]
	all := strings.Split(string(bytes.TrimSpace(raw)), "\n")
	all = all[max(0, len(all)-lines):]
	return fmt.Sprintf("; last lines of %s:\n  %s", file, strings.Join(all, "\n  "))
}
