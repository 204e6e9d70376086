package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// cli runs the operator's command in the stack's environment.
type cli struct {
	bin string
	env []string
}

func (c cli) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stderr = os.Stderr
	return cmd
}

// run prints and runs a command with this process's output.
func (c cli) run(ctx context.Context, args ...string) error {
	fmt.Fprintf(os.Stderr, "$ gpuaas %s\n", strings.Join(args, " "))
	cmd := c.command(ctx, args)
	cmd.Stdout = os.Stderr
	return cmd.Run()
}

// output runs a command and returns its standard output.
func (c cli) output(ctx context.Context, args ...string) (string, error) {
	cmd := c.command(ctx, args)
	cmd.Stderr = nil
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("gpuaas %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

func (c cli) getenv(name string) string {
	for _, kv := range c.env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// exitCode returns the exit code of a command: 0 for success, -1 if it did not run.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}
