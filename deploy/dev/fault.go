package dev

import (
	"fmt"

	"github.com/gpuaas/gpuaas/schema"
)

// fault is a failure of the stack (exit code 1) with the step that helps.
func fault(next, format string, args ...any) *schema.Error {
	return schema.NewError(schema.KindInternal, format, args...).WithReason("dev_stack").WithNext(next)
}

// UsageError is a mistake on the command line: exit code 2, no chain of causes.
type UsageError struct {
	// Command is the one whose help to read.
	Command string
	Message string
}

// Error implements error.
func (u *UsageError) Error() string { return u.Message }

// HelpFor returns the command whose help to read.
func (u *UsageError) HelpFor() string { return u.Command }

// EndedError says that a program which ran in this one's place failed: it said
// why itself.
type EndedError struct {
	Program string
	Code    int
}

// Error implements error.
func (e *EndedError) Error() string { return fmt.Sprintf("%s ended with code %d", e.Program, e.Code) }

// ExitCode returns the code that the program ended with.
func (e *EndedError) ExitCode() int { return e.Code }
