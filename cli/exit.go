package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// exitTable is the meaning of the exit codes, as the root's help prints it.
func exitTable() string {
	rows := []struct {
		code int
		does string
	}{
		{schema.ExitDone, "done"},
		{schema.ExitFailed, "failed"},
		{schema.ExitUsage, "usage: a bad flag, argument or command"},
		{schema.ExitRefused, "refused by a precondition (node_in_use, invalid_request, operation_in_progress)"},
		{schema.ExitNotFound, "not found"},
		{schema.ExitPending, "timed out or parked: the operation goes on"},
		{schema.ExitUnreachable, "a service is unreachable"},
	}
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "  %d  %s\n", r.code, r.does)
	}
	return strings.TrimRight(b.String(), "\n")
}

// usageError is a mistake on the command line: exit code 2 and a pointer to the
// help, no chain of causes.
type usageError struct {
	message string
	// help is the command whose help to read, for example "gpuaas node drain".
	help string
}

func (u *usageError) Error() string { return u.message }

func usagef(help, format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...), help: help}
}

// programError is the failure of a program that ran in place of this one and
// already reported it. Commands from Platform return it.
type programError interface {
	error
	ExitCode() int
}

// usageFailure is a usage error of a command from Platform.
type usageFailure interface {
	error
	HelpFor() string
}

// exitError ends a command whose result is already on stdout with a code and
// the lines that explain it.
type exitError struct {
	code  int
	lines []string
}

func (x *exitError) Error() string { return strings.Join(x.lines, "\n") }

// report writes what there is to say about a command's end and returns its exit
// code. A machine-readable output gets the error envelope on stdout.
func (e *env) report(ctx context.Context, err error) int {
	if err == nil {
		return schema.ExitDone
	}
	if x, ok := errors.AsType[*exitError](err); ok {
		for _, line := range x.lines {
			e.say("%s", line)
		}
		return x.code
	}
	if ended, ok := errors.AsType[programError](err); ok {
		return ended.ExitCode()
	}
	if wrong, ok := errors.AsType[usageFailure](err); ok {
		err = usagef(wrong.HelpFor(), "%s", wrong)
	}
	if u, ok := errors.AsType[*usageError](err); ok {
		e.envelope(schema.NewError(schema.KindInvalidRequest, "%s", u.message).WithReason("usage"))
		e.say("error: %s", u.message)
		e.say("see: %s --help", u.help)
		return schema.ExitUsage
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || schema.KindOf(err) == schema.KindServiceUnavailable) {
		err = schema.NewError(schema.KindInternal, "interrupted").WithReason("interrupted")
	}
	return e.reportFailure(err)
}

func (e *console) reportFailure(err error) int {
	failure, ok := errors.AsType[*schema.Error](err)
	if !ok {
		failure = schema.NewError(schema.KindInternal, "%s", err)
	}
	e.envelope(failure)
	label := string(failure.Kind)
	if failure.Reason != "" {
		label += ": " + failure.Reason
	}
	e.say("error: %s (%s)", err, label)
	if failure.Next != "" {
		e.say("next:  %s", failure.Next)
	}
	return failure.Kind.Info().Exit
}

// envelope prints the error envelope when the output is for machines.
func (e *console) envelope(failure *schema.Error) {
	if e.machine() {
		e.printMachine(failure.Body(e.correlationID)) //nolint:errcheck // the exit code tells of the failure
	}
}
