package dev

import (
	"fmt"

	"github.com/gpuaas/gpuaas/schema"
)

// stackError returns a failure of the stack (exit code 1) with its remedy.
func stackError(next, format string, args ...any) *schema.Error {
	return schema.NewError(schema.KindInternal, format, args...).WithReason("dev_stack").WithNext(next)
}

// UsageError is an invalid command line: exit code 2.
type UsageError struct {
	// Command is the command whose help applies.
	Command string
	Message string
}

// Error implements error.
func (u *UsageError) Error() string { return u.Message }

// HelpFor returns the command whose help applies.
func (u *UsageError) HelpFor() string { return u.Command }

// EndedError reports that a program failed, this one or one that ran on its behalf. The
// reason is already printed.
type EndedError struct {
	Program string
	Code    int
}

// Error implements error.
func (e *EndedError) Error() string { return fmt.Sprintf("%s exited with code %d", e.Program, e.Code) }

// ProgramCode returns the exit code of the program.
func (e *EndedError) ProgramCode() int { return e.Code }
