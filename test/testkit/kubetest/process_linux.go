package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	// startTimeout bounds each step of a cluster's start on a busy machine.
	startTimeout = 5 * time.Minute
	// stopTimeout bounds the end of a killed process and the removal of its files.
	stopTimeout = 30 * time.Second
	// pollEvery is how often a condition is checked that has no signal to wait for.
	pollEvery = 50 * time.Millisecond
)

// process is a started program that dies with the test process.
type process struct {
	name, log string // log is the file of its output
	cmd       *exec.Cmd
	exited    chan struct{}
}

// startProcess starts a program. Its output goes to NAME.log in dir. cloneflags are
// namespaces of the program's own, 0 for none.
func startProcess(dir, name string, cloneflags uintptr, path string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has its own descriptor
	p.cmd = exec.CommandContext(context.Background(), path, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: cloneflags}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent death signal is tied to the forking thread
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// kill ends the program and its children.
func (p *process) kill() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have exited
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("%s did not end %s after SIGKILL", p.name, stopTimeout)
	}
}

// tail returns the end of the program's output.
func (p *process) tail() string {
	const most = 4000
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return "--- " + p.name + ":\n" + string(text[max(0, len(text)-most):])
}

// wait polls a condition until it holds, a process exits, or the timeout.
func wait(what string, timeout time.Duration, holds func() error, processes ...*process) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		for _, p := range processes {
			select {
			case <-p.exited:
				return fmt.Errorf("%s: %s exited: %w\n%s", what, p.name, err, p.tail())
			default:
			}
		}
		select {
		case <-deadline.C:
			for _, p := range processes {
				err = fmt.Errorf("%w\n%s", err, p.tail())
			}
			return fmt.Errorf("%s: not within %s: %w", what, timeout, err)
		case <-tick.C:
		}
	}
}
