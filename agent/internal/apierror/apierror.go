package apierror

import (
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// IsRemoved reports the one answer that ends the agent: the node is removed.
func IsRemoved(err error) bool {
	return errors.Is(err, &schema.Error{Kind: schema.KindInvalidNodeIdentity, Reason: schema.ReasonNodeRemoved})
}

// ErrRemoved is the answer for a node that is removed.
var ErrRemoved = schema.NewError(schema.KindInvalidNodeIdentity, "the node is removed").WithReason(schema.ReasonNodeRemoved)

// IsTokenError reports whether an answer rejects the token, or
// nothing any longer.
func IsTokenError(err error) bool {
	switch schema.KindOf(err) {
	case schema.KindUnauthenticated, schema.KindTokenConsumed, schema.KindTokenExpired:
		return true
	}
	return false
}

// RetryError is an error whose answer says when to retry.
type RetryError struct {
	error
	After time.Duration
}

// Unwrap returns the answer's error.
func (r RetryError) Unwrap() error { return r.error }

// WithRetryAfter adds to an error when to retry.
func WithRetryAfter(err error, after time.Duration) error { return RetryError{err, after} }

// RetryAfter returns when the answer says to retry; ok is false where it does
// not.
func RetryAfter(err error) (after time.Duration, ok bool) {
	r, ok := errors.AsType[RetryError](err)
	return r.After, ok
}
