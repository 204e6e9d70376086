package apierror

import (
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// ErrRemoved is the answer for a node that is removed.
var ErrRemoved = schema.NewError(schema.KindInvalidNodeIdentity, "the node is removed").WithReason(schema.ReasonNodeRemoved)

// IsRemoved reports whether err is the one answer that ends the agent: the node is
// removed.
func IsRemoved(err error) bool { return errors.Is(err, ErrRemoved) }

// RetryError is an error whose answer named a delay before the next attempt.
type RetryError struct {
	Err   error
	After time.Duration
}

// Error returns the answer's error.
func (r RetryError) Error() string { return r.Err.Error() }

// Unwrap returns the answer's error.
func (r RetryError) Unwrap() error { return r.Err }
