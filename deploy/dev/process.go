package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/proc"
)

// checkInterval is how often until checks its condition.
const checkInterval = 25 * time.Millisecond

// identity identifies one process uniquely: its pid, and values that distinguish
// it from a later process with the same pid.
type identity struct {
	PID int `json:"pid"`
	// StartTime comes from the kernel and is only useful for comparison.
	StartTime string `json:"start_time"`
	// BootID identifies the boot that StartTime is relative to; "" if start times
	// are dates.
	BootID string `json:"boot_id,omitempty"`
}

// identify returns the identity of a running process; false if there is none or
// it is a zombie.
func identify(pid int) (identity, bool) {
	start := proc.StartTime(pid)
	return identity{PID: pid, StartTime: start, BootID: proc.BootID()}, start != ""
}

// alive reports whether this process still runs.
func (i identity) alive() bool {
	if i.PID <= 1 || i.StartTime == "" {
		return false
	}
	now, ok := identify(i.PID)
	return ok && now == i
}

// signal sends sig to this process, and never to a later one with the same pid: it
// acquires the handle before it checks the identity.
func (i identity) signal(sig os.Signal) error {
	p, err := os.FindProcess(i.PID)
	if err != nil {
		return err
	}
	defer p.Release() //nolint:errcheck // only releases the handle
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

// defaultStop sends SIGTERM, then SIGKILL.
func defaultStop() []stopStep {
	return []stopStep{{syscall.SIGTERM, 12 * time.Second}, {syscall.SIGKILL, time.Minute}}
}

// stop stops this process. It returns nil once the process has exited, even if it
// had exited before.
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
	return stackError(fmt.Sprintf("inspect it: ps -fp %d", i.PID), "pid %d does not exit after SIGKILL", i.PID)
}

// until waits for a condition; false if it did not become true in time.
func until(ctx context.Context, limit time.Duration, condition func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(checkInterval)
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

// command is a program to run as a separate process.
type command struct {
	path string
	args []string
	// env is the complete environment. It may contain secrets; args never do.
	env []string
	// dir is the working directory. Defaults to the current one.
	dir string
	// user is the account to run as. Defaults to the current one.
	user *account
}

// spawn starts c in a new session, so that it survives this process and its
// terminal, and appends its output to the file log. The channel closes when the
// process exits.
func spawn(c command, log string) (identity, <-chan struct{}, error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return identity{}, nil, err
	}
	defer out.Close()                      //nolint:errcheck // the child has its own descriptor
	cmd := exec.Command(c.path, c.args...) //nolint:noctx // it outlives this command
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.env, c.dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: c.user.credential()}
	if err := cmd.Start(); err != nil {
		return identity{}, nil, fmt.Errorf("starting %s: %w", c.path, err)
	}
	id, _ := identify(cmd.Process.Pid)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // only reaps the process; its log has the reason
	}()
	return id, ended, nil
}
