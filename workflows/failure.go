package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxMessage is how many characters of a failure's message an operation keeps. Temporal
// terminates a run with a search attribute of more than 2,048 bytes, and SQL visibility
// stores 255: maxReason is the length of a reason in bytes.
const (
	maxMessage = 2000
	maxReason  = 64
)

// failureOf returns the typed error of a failed call: the one that an activity
// returned, or, for a timeout, the last one before it. Its message and next step are each one line of
// bounded length. A reason that has another form than a reason is dropped.
func failureOf(err error) *schema.Error {
	if e := activities.Typed(err); e != nil {
		bounded := *e
		bounded.Message, bounded.Next = text.Line(e.Message, maxMessage), text.Line(e.Next, maxMessage)
		if !text.IsToken(e.Reason, maxReason, "_") {
			bounded.Reason = ""
		}
		return &bounded
	}
	if temporal.IsTimeoutError(err) {
		return schema.NewError(schema.KindServiceUnavailable, "no response in time").WithReason(lifecycle.ReasonTimeout)
	}
	return schema.NewError(schema.KindInternal, "unexpected failure%s", unexpected(err))
}

// unexpected names what failed without a typed error: the activity and the type of its error. The
// error's text stays in the worker's log: it may be anything.
func unexpected(err error) (what string) {
	if a, ok := errors.AsType[*temporal.ActivityError](err); ok {
		what = " of the activity " + a.ActivityType().GetName()
	}
	var panicked *temporal.PanicError
	app, ok := errors.AsType[*temporal.ApplicationError](err)
	switch {
	case errors.As(err, &panicked):
		what += ": it panicked"
	case ok && text.IsToken(app.Type(), maxReason, "_"):
		what += ": " + app.Type()
	}
	return what
}

// kindOf returns the kind of a failed call.
func kindOf(err error) schema.Kind { return failureOf(err).Kind }

// asFailure turns a typed error into the failure of an update handler.
func asFailure(e *schema.Error) error {
	if e == nil {
		return nil
	}
	return activities.Failure(e, true)
}

var (
	// errCanceled ends an operation's phases: an operator canceled the operation,
	// or its run in the Web UI.
	errCanceled = errors.New("operation canceled")
	// errResumed stands for the failure for which the run before parked.
	errResumed = errors.New("parked by the run before")
	// errNodeRemoved ends an operation whose node a concurrent operation removed.
	errNodeRemoved = errors.New("node removed")
)
