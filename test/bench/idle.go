package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// benchIdle compares an idle node agent with an idle worker process of Temporal's SDK
// with one activity.
func benchIdle(ctx context.Context, e *env) error {
	agent, err := e.startAgent(ctx, "idle-1")
	if err != nil {
		return err
	}
	peer, stop, err := e.startIdleWorker(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := pause(ctx, e.span(30*time.Second)); err != nil {
		return err
	}
	ours, err := memoryOf(agent)
	if err != nil {
		return err
	}
	theirs, err := memoryOf(peer)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	e.most("resident memory of the idle process", "MiB", ours.Resident/mib, theirs.Resident/mib, 0.7)
	e.most("private memory of the idle process", "MiB", ours.Private/mib, theirs.Private/mib, 0.5)
	return nil
}

// startAgent registers a node, starts a real agent process and waits until it polls.
func (e *env) startAgent(ctx context.Context, host string) (pid int, err error) {
	for _, args := range [][]string{
		{"node", "register", host, "--sku", "cpu-dev", "--region", "local"},
		{"dev", "agent", host, "--detach", "--dir", e.Dir},
	} {
		if out, err := e.Command(ctx, args...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("gpuaas %v: %w: %s", args, err, out)
		}
	}
	if err := e.active(ctx, 1); err != nil {
		return 0, err
	}
	parts, err := e.Parts(ctx)
	if err != nil {
		return 0, err
	}
	for name, p := range parts {
		if filepath.Base(name) == host {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("no agent among the stack's parts: %v", parts)
}

// startIdleWorker builds and starts a minimal worker.
func (e *env) startIdleWorker(ctx context.Context) (pid int, stop func(), err error) {
	program := filepath.Join(e.folder, "idleworker")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", program, "github.com/gpuaas/gpuaas/test/bench/idleworker")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, nil, fmt.Errorf("building the idle worker: %w: %s", err, out)
	}
	cmd := exec.CommandContext(ctx, program, e.Getenv("TEMPORAL_ADDRESS"), e.Getenv("TEMPORAL_NAMESPACE"))
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() { _ = errors.Join(cmd.Process.Kill(), cmd.Wait()) }, nil
}
