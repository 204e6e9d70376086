package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// lookEvery is how often a condition of another process is looked at again.
const lookEvery = 25 * time.Millisecond

// identity names one process for ever: its pid together with what tells it from
// a later process of the same pid.
type identity struct {
	PID int `json:"pid"`
	// StartTime is the kernel's, in a form only good for comparing.
	StartTime string `json:"start_time"`
	// BootID is the boot that StartTime counts from; "" where start times are
	// dates.
	BootID string `json:"boot_id,omitempty"`
}

// identify answers the identity of a running process; false when there is none
// or it has ended and only waits to be reaped.
func identify(pid int) (identity, bool) {
	start := startTime(pid)
	return identity{PID: pid, StartTime: start, BootID: bootID()}, start != ""
}

// alive reports whether the very process still runs.
func (i identity) alive() bool {
	if i.PID <= 1 || i.StartTime == "" {
		return false
	}
	now, ok := identify(i.PID)
	return ok && now == i
}

// signal sends sig to the very process, and nothing to another one that got its
// pid: the handle is taken before the identity is looked at.
func (i identity) signal(sig os.Signal) error {
	p, err := os.FindProcess(i.PID)
	if err != nil {
		return err
	}
	defer p.Release() //nolint:errcheck // only gives the handle back
	if !i.alive() {
		return nil
	}
	err = p.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// stopStep is one signal and how long to wait for its effect.
type stopStep struct {
	signal os.Signal
	wait   time.Duration
}

// gentle is the usual way to stop a process: ask, then insist.
func gentle() []stopStep {
	return []stopStep{{syscall.SIGTERM, 12 * time.Second}, {syscall.SIGKILL, 5 * time.Second}}
}

// stop ends the very process. It is nil as soon as the process is gone, also
// when it was gone before.
func (i identity) stop(ctx context.Context, steps []stopStep) error {
	for _, s := range steps {
		if err := i.signal(s.signal); err != nil {
			return fmt.Errorf("stopping pid %d: %w", i.PID, err)
		}
		if until(ctx, s.wait, func() bool { return !i.alive() }) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fault("look at it with: ps -fp %[1]d", "pid %[1]d does not end, not even by SIGKILL", i.PID)
}

// until waits for a condition; false when it did not come true in time.
func until(ctx context.Context, limit time.Duration, condition func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return condition()
		case <-tick.C:
		}
	}
	return true
}

// command is a program to run as a process of its own.
type command struct {
	path string
	args []string
	// env is the whole environment. It may hold secrets; args never do.
	env []string
	// dir is the working folder. Defaults to this process's.
	dir string
	// user runs it as somebody else. Defaults to this process's user.
	user *account
}

// spawn starts c in a session of its own, so that it outlives this process and
// its terminal, with its output appended to the file log. The channel is closed
// when it ended while this process was still there to see it.
func spawn(c command, log string) (identity, <-chan struct{}, error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return identity{}, nil, err
	}
	defer out.Close()                      //nolint:errcheck // the child has its own descriptor
	cmd := exec.Command(c.path, c.args...) //nolint:noctx // it outlives this command line
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.env, c.dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: c.user.credential()}
	if err := cmd.Start(); err != nil {
		return identity{}, nil, fmt.Errorf("starting %s: %w", c.path, err)
	}
	id, _ := identify(cmd.Process.Pid)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended is in its log; this only reaps it
	}()
	return id, ended, nil
}
