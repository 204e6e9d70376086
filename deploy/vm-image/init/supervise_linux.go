package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func parseIP(s string) net.IP { return net.ParseIP(s) }

// supervise runs the agent and restarts it when it fails. It returns when the agent ends with
// success, which it does when its node was removed.
func supervise() error {
	pause := time.Second
	for {
		say("starting the agent")
		started := time.Now()
		process, err := os.StartProcess(agentPath, []string{agentPath, "run"}, &os.ProcAttr{
			Dir:   "/",
			Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", agent.EnvFileVar + "=" + trust.DefaultEnvFile},
			Files: []*os.File{nil, os.Stdout, os.Stderr},
		})
		if err != nil {
			return fmt.Errorf("starting the agent: %w", err)
		}
		status, err := reap(process.Pid)
		if err != nil {
			return err
		}
		if status.Exited() && status.ExitStatus() == 0 {
			say("the agent ended: its node was removed")
			return nil
		}
		if time.Since(started) > time.Minute {
			pause = time.Second
		}
		say("the agent ended (exit code %d, signal %d); restarting it in %s", status.ExitStatus(), status.Signal(), pause)
		time.Sleep(pause) //nolint:forbidigo // nothing else happens meanwhile
		pause = min(2*pause, 30*time.Second)
	}
}

// reap waits for a process. As the first process, it also reaps those whose parents ended.
func reap(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return status, fmt.Errorf("waiting for the agent: %w", err)
		case got == pid && (status.Exited() || status.Signaled()):
			return status, nil
		}
	}
}
