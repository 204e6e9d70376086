// Package devserver runs the servers of the development stack for tests and stops them
// with the test process. Packages temporaltest and vaulttest use it.
package devserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Find searches for a program in the bin folder, upward from the test's folder. The
// error explains how to build it.
func Find(program string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "bin", program)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("bin/%s is missing; build it with: ./task build:%s", program, strings.TrimPrefix(program, "gpuaas-"))
}

// Process is a started server.
type Process struct {
	cmd     *exec.Cmd
	timeout time.Duration
	exited  chan struct{}
}

// Start starts a server and waits until it prints a line with the text ready to standard
// error. It returns the rest of that line. The timeout also bounds a later Stop.
func Start(timeout time.Duration, ready, path string, args ...string) (p *Process, said string, err error) {
	p = &Process{cmd: exec.CommandContext(context.Background(), path, args...), timeout: timeout, exited: make(chan struct{})}
	p.cmd.SysProcAttr = dieWithParent()
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, "", err
	}
	started, line := make(chan error, 1), make(chan string, 1)
	var output bytes.Buffer
	go func() {
		// The parent death signal is tied to the forking thread.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if _, after, ok := strings.Cut(lines.Text(), ready); ok {
				line <- after
				break
			}
			output.WriteString(lines.Text() + "\n")
		}
		_, _ = io.Copy(io.Discard, stderr) // unread output must not block the server
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, "", fmt.Errorf("starting %s: %w", path, err)
	}
	select {
	case said = <-line:
		return p, said, nil
	case <-p.exited:
		return nil, "", fmt.Errorf("%s exited during startup: %s", path, output.String())
	case <-time.After(timeout):
		return nil, "", errors.Join(fmt.Errorf("%s is not ready after %s", path, timeout), p.cmd.Process.Kill())
	}
}

// Running reports whether the server is still running.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop stops the server gracefully, waits for it, and kills it after the timeout.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(p.timeout):
		err := p.cmd.Process.Kill()
		<-p.exited
		return err
	}
}
