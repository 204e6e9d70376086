package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// pollFirst is the pause after the first read of a followed operation: many
	// operations take less than a second. It doubles up to pollEvery, or up to
	// pollWithEvents once an event has arrived.
	pollFirst      = 250 * time.Millisecond
	pollEvery      = time.Second
	pollWithEvents = 10 * time.Second
	// silenceBudget is how long reads may fail before the wait stops.
	silenceBudget = 30 * time.Second
	// waitGrace is the time of a wait beyond the phases' own limits.
	waitGrace = time.Minute
	// reloadEvery and reloadReads bound the wait for the effect of a decision.
	reloadEvery = 200 * time.Millisecond
	reloadReads = 25
)

// followRequest says which operation to follow and for how long.
type followRequest struct {
	target    target
	operation lifecycle.Operation
	options   lifecycle.Options
	control   control
	// limit bounds the wait. By default, the wait ends when a phase is past its limit; see
	// followed.renew.
	limit time.Duration
	// throughParks keeps waiting while the operation is parked.
	throughParks bool
	// decided is the park about which a decision was accepted. A read that still
	// shows it is older than the decision.
	decided *lifecycle.Stuck
	// quiet shows nothing while it waits.
	quiet bool
}

// follow shows an operation until it ends, parks, or the wait is over, and
// returns the last state. The error reports how the wait ended: nil when the
// operation ended, parked or was abandoned. It never changes the operation.
func (e *env) follow(ctx context.Context, r followRequest) (lifecycle.OperationStatus, error) {
	f := &followed{env: e, request: r, started: e.clock.now(), progress: newProgress(e, r),
		last: lifecycle.OperationStatus{Operation: r.operation, Node: r.target.ref()}}
	f.until = f.started.Add(cmp.Or(r.limit, waitGrace+budgetOf(r.operation.Action, r.options)))
	events, stop := context.WithCancel(ctx)
	defer stop()
	changes := r.control.changes(events, r.target.id)
	pace := pollEvery
	for pause := pollFirst; ; pause = min(2*pause, pace) {
		st, err := r.control.status(ctx, r.operation)
		if ctx.Err() != nil {
			return f.last, f.pending("stopped waiting")
		}
		if done, err := f.take(st, err); done {
			return f.last, err
		}
		left := f.until.Sub(e.clock.now())
		var changed bool
		changes, changed = e.clock.pause(ctx, min(pause, left), changes, func() { f.progress.show(f.last, f.note) })
		if changed { // the events arrive
			pace = pollWithEvents
		} else if changes == nil {
			pace = pollEvery
		}
	}
}

// budgetOf is the longest that an operation runs without parking, with the default limits of its
// phases.
func budgetOf(a lifecycle.Action, o lifecycle.Options) time.Duration {
	var sum time.Duration
	for _, p := range lifecycle.PhasesOf(a, o) {
		sum += p.Budget
	}
	return sum
}

// followed is the state of one wait.
type followed struct {
	env      *env
	request  followRequest
	progress *progress
	started  time.Time
	// until is when the wait ends.
	until time.Time
	last  lifecycle.OperationStatus
	note  note
	// silentSince is when reads began to fail; zero while they succeed.
	silentSince time.Time
}

// take uses one read and reports whether the wait is over.
func (f *followed) take(st wire.OperationView, readErr error) (done bool, err error) {
	now, r := f.env.clock.now(), f.request
	if readErr == nil {
		f.silentSince, f.note, f.last = time.Time{}, retriedCall(st.Faults), st.OperationStatus
	} else {
		if f.silentSince.IsZero() {
			f.silentSince = now
		}
		text := "the operation cannot be read: " + readErr.Error()
		f.note = note{text, text}
		if now.Sub(f.silentSince) >= silenceBudget || errors.Is(readErr, &schema.Error{Kind: schema.KindNotFound}) {
			lines := []string{"error: stopped waiting: " + f.note.text, "the operation is still running",
				"follow it with: " + r.target.op("watch", r.operation.Action)}
			if f.progress.seen[f.note.key] != "" { // the note is printed
				lines[0] = "error: stopped waiting after " + lifecycle.Span(now.Sub(f.silentSince))
			}
			return true, &exitError{schema.KindOf(readErr).Info().Exit, lines}
		}
	}
	f.progress.show(f.last, f.note)
	op := f.last.Operation
	f.renew(op.DeadlineAt)
	switch {
	case readErr == nil && (op.Status.Ended() || op.Status == lifecycle.OperationAbandoned || parkedAgain(op, r.decided) && !r.throughParks):
		return true, nil
	case !now.Before(f.until):
		return true, f.pending("stopped waiting after " + lifecycle.Span(now.Sub(f.started)))
	}
	return false, nil
}

// note is a line about a followed operation. It is written once for each key.
type note struct{ key, text string }

// retriedCall is the note about a call that fails and is retried, a zero one without. Each retry
// changes the text.
func retriedCall(faults []wire.ControlPlaneFault) note {
	if len(faults) == 0 {
		return note{}
	}
	return note{"fault " + faults[0].Component + " " + faults[0].Reason, "retrying: " + faults[0].Message}
}

// renew extends a wait that has no limit of its own to waitGrace after the deadline of the current
// phase. The deadline has the limits of the node's provider, an extended drain and further attempts;
// the plan that budgetOf uses has none of them. It comes with every status, also with --direct,
// where no API can be asked for the provider. It can only prolong the wait, so a local clock
// that is ahead does not end the wait of an operation within the default limits.
func (f *followed) renew(deadline *time.Time) {
	if f.request.limit == 0 && deadline != nil && deadline.Add(waitGrace).After(f.until) {
		f.until = deadline.Add(waitGrace)
	}
}

// parkedAgain reports whether the operation is parked, and not in the park that was
// decided about.
func parkedAgain(op lifecycle.Operation, decided *lifecycle.Stuck) bool {
	return op.Status == lifecycle.OperationParked && (decided == nil || op.Stuck == nil || !op.Stuck.Since.Equal(decided.Since))
}

// pending ends a wait before the operation's end.
func (f *followed) pending(why string) error {
	t, op := f.request.target, f.last.Operation
	if op.Status == lifecycle.OperationParked {
		return &exitError{schema.ExitPending, []string{why + ": the operation is parked and waits for a decision",
			"show the options with: " + t.op("show", op.Action), "follow it with: " + t.op("watch", op.Action)}}
	}
	return &exitError{schema.ExitPending, []string{why + ": the operation is still running", "follow it with: " + t.op("watch", op.Action),
		"undo it with:   " + lifecycle.DecisionCommand(lifecycle.DecisionCancel, op.Action, t.name(), op.OperationID)}}
}

// reload reads an operation again until the effect of a decision shows: the answer to
// the decision may be older than its effect. It returns the last state that was read.
func (e *env) reload(ctx context.Context, ctl control, st lifecycle.OperationStatus, decided *lifecycle.Stuck) lifecycle.OperationStatus {
	for range reloadReads {
		if st.Operation.Status != lifecycle.OperationParked || parkedAgain(st.Operation, decided) {
			break
		}
		e.clock.pause(ctx, reloadEvery, nil, func() {})
		now, err := ctl.status(ctx, st.Operation)
		if err != nil {
			break
		}
		st = now.OperationStatus
	}
	return st
}
