package apierror

import (
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// ErrRemoved is the answer for a node that is removed.
var ErrRemoved = schema.NewError(schema.KindInvalidNodeIdentity, "the node is removed").WithReason(schema.ReasonNodeRemoved)

// IsRemoved reports whether err is the answer for a removed node. Only a signed removal
// makes it true.
func IsRemoved(err error) bool { return errors.Is(err, ErrRemoved) }

// RemovedError is the answer for a removed node that carries a document to prove it.
type RemovedError struct {
	Err      error
	Document []byte
}

// Error returns the answer's error.
func (r RemovedError) Error() string { return r.Err.Error() }

// Unwrap returns the answer's error.
func (r RemovedError) Unwrap() error { return r.Err }

// RetryError is an error whose answer named a delay before the next attempt.
type RetryError struct {
	Err   error
	After time.Duration
}

// Error returns the answer's error.
func (r RetryError) Error() string { return r.Err.Error() }

// Unwrap returns the answer's error.
func (r RetryError) Unwrap() error { return r.Err }
