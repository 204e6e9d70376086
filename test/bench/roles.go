package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
)

// role is a part of a benchmark that runs in a separate process.
type role func(ctx context.Context, args []string, in io.Reader, out io.Writer) error

func roles() map[string]role {
	return map[string]role{"role-peer": peerRole, "role-floor": floorRole, "role-agents": agentsRole}
}

// child is this program in a role.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // its output
	stop  func()
	// connected is the number of agents in the last "connect" command.
	connected int
}

// spawn starts a role.
func (e *env) spawn(ctx context.Context, name string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, append([]string{name}, args...)...)
	cmd.Env = append(os.Environ(), e.roleEnv...)
	cmd.Stderr = e.messages
	c := &child{cmd: cmd, lines: make(chan string, 1<<16)}
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	c.stop = sync.OnceFunc(func() {
		_ = c.in.Close()       // a role exits at the end of its input
		_ = cmd.Process.Kill() // in case it does not exit
		for range c.lines {    // until it is closed
		}
		_ = cmd.Wait() // it was killed
	})
	return c, nil
}

// expect waits for a line with the given first word and scans the rest into out.
func (c *child) expect(ctx context.Context, d time.Duration, word string, out ...any) error {
	late := time.NewTimer(d)
	defer late.Stop()
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				return fmt.Errorf("the process exited before it printed %q", word)
			}
			if len(line) >= len(word) && line[:len(word)] == word {
				_, err := fmt.Sscan(line[len(word):], out...)
				if len(out) == 0 {
					err = nil
				}
				return err
			}
		case <-late.C:
			return fmt.Errorf("no %q within %s", word, d)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends a command.
func (c *child) send(format string, args ...any) error {
	_, err := fmt.Fprintf(c.in, format+"\n", args...)
	return err
}

const peerActivity = "PeerWork"

// peerQueue returns the task queue of the peer's i-th node.
func peerQueue(i int) string { return fmt.Sprintf("peer-node-%d", i) }

// peerRole runs the peer's nodes in one process, each a worker with its own queue and
// connection. Arguments: address, namespace, count.
func peerRole(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	for i := range n {
		if err := startPeerAgain(ctx, args[0], args[1], peerQueue(i)); err != nil {
			return err
		}
		if (i+1)%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of the peer's %d workers run\n", i+1, n)
		}
	}
	fmt.Fprintln(out, "ready")
	_, err = io.Copy(io.Discard, in) // until the benchmark closes it
	return err
}

// peerTries is the number of attempts to start a worker. On a loaded server some
// attempts time out.
const peerTries = 5

func startPeerAgain(ctx context.Context, address, namespace, queue string) (err error) {
	for range peerTries {
		if err = startPeer(address, namespace, queue); err == nil || pause(ctx, time.Second) != nil {
			return err
		}
	}
	return err
}

// startPeer starts one node's worker, which stops with the process.
func startPeer(address, namespace, queue string) error {
	c, err := client.Dial(client.Options{HostPort: address, Namespace: namespace, Logger: quiet{}})
	if err != nil {
		return err
	}
	w := worker.New(c, queue, worker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1})
	w.RegisterActivityWithOptions(func(context.Context) error { return nil }, activity.RegisterOptions{Name: peerActivity})
	return w.Start()
}

// quiet is a logger without output.
type quiet struct{}

// Debug, Info, Warn and Error implement the SDK's logger.
func (quiet) Debug(string, ...any) {}

// Info logs nothing.
func (quiet) Info(string, ...any) {}

// Warn logs nothing.
func (quiet) Warn(string, ...any) {}

// Error logs nothing.
func (quiet) Error(string, ...any) {}
