package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// confirm asks before a destructive verb. Without a terminal nobody can answer,
// so it refuses unless --yes was given.
func (e *console) confirm(ctx context.Context, t target, v verb, yes bool) error {
	if v.consequence == "" {
		return nil
	}
	return e.ask(ctx, "gpuaas node "+string(v.action), fmt.Sprintf("%s %s: %s", v.action, t.name(), v.consequence), yes)
}

// ask asks whether to go on with what; command is whose help explains --yes.
func (e *console) ask(ctx context.Context, command, what string, yes bool) error {
	if yes {
		return nil
	}
	if !e.tty.in || !e.tty.err {
		return usagef(command, "%s. There is no terminal to ask on: give --yes to go on", what)
	}
	fmt.Fprintf(e.stderr, "%s. Go on? [y/N] ", clean(what))
	answer := make(chan string, 1)
	go func() { // ends with the process when the operator interrupts: a read of a terminal cannot be broken off
		line, _ := bufio.NewReader(e.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return &exitError{schema.ExitFailed, []string{"nothing was changed"}}
	}
}
