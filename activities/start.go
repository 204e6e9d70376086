package activities

import (
	"cmp"
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Starter starts operations. A second call with the same operation ID attaches to the first one's
// run.
type Starter interface {
	Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error)
}

// starts starts the operations that a round chose and stored.
type starts struct {
	starter Starter
	// what is an operation in an error, for example "the repair".
	what string
	// accepted and refused record the answer. accepted is nil if the operation itself is the record.
	accepted func(ctx context.Context, operationID string) error
	refused  func(ctx context.Context, in lifecycle.OperationInput, why string) error
}

// all starts the operations until the time is over; a later round starts the others. It returns the IDs
// of those that were accepted and rejected. If a start fails for another reason, it starts the others and
// returns the error, which is not retried: that would hide it, and a later round tries the start again.
func (s starts) all(ctx context.Context, operations []lifecycle.OperationInput, until time.Time) (started, refused []string, err error) {
	var failed error
	for _, in := range operations {
		if ctx.Err() != nil || time.Now().After(until) {
			break
		}
		ok, err := s.start(ctx, in)
		switch failed = cmp.Or(failed, err); {
		case err != nil:
		case ok:
			started = append(started, in.OperationID)
		default:
			refused = append(refused, in.OperationID)
		}
		activity.RecordHeartbeat(ctx)
	}
	if failed != nil {
		return nil, nil, Failure(schema.AsError(failed), true)
	}
	return started, refused, Fail(ctx.Err())
}

// start starts an operation, records the answer, and reports whether it was accepted.
func (s starts) start(ctx context.Context, in lifecycle.OperationInput) (ok bool, err error) {
	_, err = s.starter.Submit(ctx, in)
	e := schema.AsError(err)
	switch {
	case err == nil && s.accepted == nil:
		return true, nil
	case err == nil:
		return true, s.accepted(ctx, in.OperationID)
	case e.Kind.Info().Retry || ctx.Err() != nil:
		return false, schema.NewError(e.Kind, "starting %s of node %s: %s", s.what, in.Host, e.Message).WithReason(e.Reason).WithNext(e.Next)
	}
	return false, s.refused(ctx, in, e.Message)
}
