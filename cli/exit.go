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
	lines := []string{"Exit codes:"}
	for code, meaning := range []string{
		schema.ExitDone:        "done",
		schema.ExitFailed:      "failed",
		schema.ExitUsage:       "usage: an invalid flag, argument or command",
		schema.ExitRefused:     "refused by a precondition (node_in_use, invalid_request, operation_in_progress)",
		schema.ExitNotFound:    "not found",
		schema.ExitPending:     "timed out or parked: the operation continues",
		schema.ExitUnreachable: "a service is unreachable",
	} {
		lines = append(lines, fmt.Sprintf("  %d  %s", code, meaning))
	}
	return strings.Join(lines, "\n")
}

// usageError is a mistake on the command line: exit code 2 and a pointer to the
// help, no chain of causes.
type usageError struct {
	message string
	// help is the command whose help to read, for example "gpuaas node drain".
	help string
}

func (u *usageError) Error() string { return u.message }

// HelpFor implements usageFailure.
func (u *usageError) HelpFor() string { return u.help }

func usagef(help, format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...), help: help}
}

// usageFailure is a usage error, of this package or of a command from Platform.
type usageFailure interface {
	error
	HelpFor() string
}

// programError is the failure of a program that ran in place of this one and
// already reported it. Commands from Platform return it. Its method is not that of an
// exec.ExitError, which reports nothing.
type programError interface {
	error
	ProgramCode() int
}

// exitError ends a command whose result is already on stdout with a code and
// the lines that explain it.
type exitError struct {
	code  int
	lines []string
}

func (x *exitError) Error() string { return strings.Join(x.lines, "\n") }

// report writes the error of a command to stderr, and the error envelope to stdout
// when the output is for programs. It returns the exit code.
func (e *env) report(ctx context.Context, err error) int {
	if err == nil {
		return schema.ExitDone
	}
	if x, ok := errors.AsType[*exitError](err); ok {
		for _, line := range x.lines {
			e.message("%s", line)
		}
		return x.code
	}
	if ended, ok := errors.AsType[programError](err); ok {
		return ended.ProgramCode()
	}
	if u, ok := errors.AsType[usageFailure](err); ok {
		e.envelope(schema.NewError(schema.KindInvalidRequest, "%s", u).WithReason("usage"))
		e.message("error: %s", u)
		e.message("see: %s --help", u.HelpFor())
		return schema.ExitUsage
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || schema.KindOf(err) == schema.KindServiceUnavailable) {
		err = schema.NewError(schema.KindInternal, "interrupted").WithReason("interrupted")
	}
	failure, ok := errors.AsType[*schema.Error](err)
	if !ok {
		failure = schema.NewError(schema.KindInternal, "%s", err)
	}
	e.envelope(failure)
	label := string(failure.Kind)
	if failure.Reason != "" {
		label += ": " + failure.Reason
	}
	e.message("error: %s (%s)", err, label)
	if failure.Next != "" {
		e.message("next:  %s", failure.Next)
	}
	return failure.Kind.Info().Exit
}

// envelope prints the error envelope when the output is JSON or YAML.
func (e *console) envelope(failure *schema.Error) {
	if e.output == formatJSON || e.output == formatYAML {
		e.printMachine(failure.Body(e.correlationID)) //nolint:errcheck // the exit code reports the failure
	}
}
