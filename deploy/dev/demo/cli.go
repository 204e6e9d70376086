package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/gpuaas/gpuaas/test/stack"
)

// cli runs the operator's command in the stack's environment.
type cli struct {
	stack.Stack
	// out receives the commands and their output.
	out io.Writer
}

// run prints and runs a command with this process's output.
func (c cli) run(ctx context.Context, args ...string) error { return c.runWith(ctx, nil, args...) }

// runWith is run with additional variables, as NAME=value.
func (c cli) runWith(ctx context.Context, env []string, args ...string) error {
	fmt.Fprintf(c.out, "$ gpuaas %s\n", strings.Join(args, " "))
	cmd := c.Command(ctx, args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = c.out, c.out
	return cmd.Run()
}

// output runs a command and returns its standard output.
func (c cli) output(ctx context.Context, args ...string) (string, error) {
	out, err := c.Command(ctx, args...).Output()
	if err != nil {
		return "", fmt.Errorf("gpuaas %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
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
