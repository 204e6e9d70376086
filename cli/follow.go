package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

const (
	// pollEvery is how often a followed operation is read; the first reads come
	// faster, since many operations take less than a second.
	pollEvery = time.Second
	pollFirst = 250 * time.Millisecond
	// pollWithEvents is pollEvery while the event stream is open.
	pollWithEvents = 10 * time.Second
	// silenceBudget is how long reads may fail before the wait stops.
	silenceBudget = 30 * time.Second
	// waitGrace is the time of a wait beyond the phases' own budgets.
	waitGrace = time.Minute
)

// followRequest says which operation to follow and for how long.
type followRequest struct {
	target    target
	operation lifecycle.Operation
	options   lifecycle.Options
	control   control
	// limit bounds the wait. Defaults to the sum of the phases' budgets.
	limit time.Duration
	// throughParks keeps waiting while the operation is parked.
	throughParks bool
	// quiet shows nothing while it waits.
	quiet bool
}

// snapshot is one read of a followed operation.
type snapshot struct {
	status lifecycle.OperationStatus
	err    error
}

// follow shows an operation until it ends, parks, or the wait is over, and
// returns the last state. The error reports how the wait ended: nil when the
// operation ended or parked. It never changes the operation.
func (e *env) follow(ctx context.Context, r followRequest) (lifecycle.OperationStatus, error) {
	if r.limit == 0 {
		r.limit = waitGrace + budgetOf(r.operation.Action, r.options)
	}
	reading, cancel := context.WithCancel(ctx)
	var reads sync.WaitGroup
	defer reads.Wait()
	defer cancel()
	snapshots := make(chan snapshot, 1) // one read at a time, so it never blocks
	read := func() {
		reads.Go(func() {
			st, err := r.control.status(reading, r.operation)
			snapshots <- snapshot{st, err}
		})
	}

	f := &followed{env: e, request: r, started: e.clock.now(), show: e.newView(r),
		last: lifecycle.OperationStatus{Operation: r.operation, Node: r.target.ref()}}
	changes, pace := r.control.changes(reading, r.target.id), pollEvery
	ticks, stop := e.clock.spin()
	defer stop()
	read()
	var again <-chan time.Time
	pause, changed := pollFirst, false
	for {
		select {
		case s := <-snapshots:
			if ctx.Err() != nil {
				return f.last, f.pending("stopped waiting: the operation is still running")
			}
			if done, err := f.take(s); done {
				return f.last, err
			}
			if changed {
				changed = false
				read()
				continue
			}
			again = e.clock.after(min(pause, r.limit-e.clock.now().Sub(f.started)))
			pause = min(2*pause, pace)
		case <-again:
			again = nil
			read()
		case _, open := <-changes:
			switch pace = pollWithEvents; {
			case !open:
				changes, pace = nil, pollEvery
			case again == nil: // a read is under way, and may miss the change
				changed = true
			default:
				again = nil
				read()
			}
		case <-ticks:
			f.show(f.last, f.note)
		case <-ctx.Done():
			return f.last, f.pending("stopped waiting: the operation is still running")
		}
	}
}

// budgetOf is the longest that an operation runs without parking.
func budgetOf(a lifecycle.Action, o lifecycle.Options) time.Duration {
	var sum time.Duration
	for _, p := range lifecycle.PhasesOf(a, o) {
		sum += p.Budget
	}
	return sum
}

// followed is the state of one wait.
type followed struct {
	env     *env
	request followRequest
	show    view
	started time.Time
	last    lifecycle.OperationStatus
	note    string
	// silentSince is when reads began to fail; zero while they succeed.
	silentSince time.Time
}

// take uses one read and reports whether the wait is over.
func (f *followed) take(s snapshot) (done bool, err error) {
	now := f.env.clock.now()
	name, action := f.request.target.name(), f.request.operation.Action
	if s.err != nil {
		if f.silentSince.IsZero() {
			f.silentSince = now
		}
		f.note = fmt.Sprintf("the operation cannot be read: %s", s.err)
		if now.Sub(f.silentSince) >= silenceBudget || errors.Is(s.err, &schema.Error{Kind: schema.KindNotFound}) {
			return true, &exitError{schema.KindOf(s.err).Info().Exit, []string{
				"error: stopped waiting, the operation cannot be read: " + s.err.Error(),
				"the operation is still running", "follow it with: " + lifecycle.OpCommand("watch", action, name)}}
		}
	} else {
		f.silentSince, f.note, f.last = time.Time{}, "", s.status
	}
	f.show(f.last, f.note)
	state := f.last.Operation.Status
	switch {
	case s.err == nil && state.Ended(), s.err == nil && state == lifecycle.OperationParked && !f.request.throughParks:
		return true, nil
	case now.Sub(f.started) >= f.request.limit:
		return true, f.pending(fmt.Sprintf("stopped waiting after %s: the operation is still running", span(f.request.limit)))
	}
	return false, nil
}

// pending ends a wait before the operation's end.
func (f *followed) pending(why string) error {
	name, action := f.request.target.name(), f.request.operation.Action
	return &exitError{schema.ExitPending, []string{why, "follow it with: " + lifecycle.OpCommand("watch", action, name),
		"undo it with:   " + lifecycle.DecisionCommand(lifecycle.DecisionCancel, action, name, "")}}
}
