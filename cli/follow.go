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
	// pollEvery is how often a followed operation is asked for its state; the
	// first questions come faster, since many operations take no second.
	pollEvery = time.Second
	pollFirst = 250 * time.Millisecond
	// statusBudget bounds one such question: with no worker it never ends.
	statusBudget = 3 * time.Second
	// resultBudget bounds the reading of a closed run's result.
	resultBudget = 10 * time.Second
	// silenceBudget is how long nobody may answer before the waiting gives up.
	silenceBudget = 30 * time.Second
	// waitGrace is what a waiting has beyond the phases' own budgets.
	waitGrace = time.Minute
)

// followRequest says which operation to follow and for how long.
type followRequest struct {
	target    target
	operation lifecycle.Operation
	options   lifecycle.Options
	// temporal is nil when only the admin API can be asked.
	temporal Lifecycle
	// limit bounds the waiting. Defaults to the sum of the phases' budgets.
	limit time.Duration
	// throughParks goes on while the operation is parked.
	throughParks bool
	// quiet shows nothing while it waits.
	quiet bool
}

// snapshot is one answer about a followed operation.
type snapshot struct {
	status lifecycle.OperationStatus
	// note says why the answer is second-hand.
	note string
	err  error
}

// follow shows an operation until it ends, parks, or the waiting is over, and
// returns the last state seen. The error says how the waiting ended: nil when
// the operation ended or parked. It never changes the operation.
func (e *env) follow(ctx context.Context, r followRequest) (lifecycle.OperationStatus, error) {
	if r.limit == 0 {
		r.limit = waitGrace + budgetOf(r.operation.Action, r.options)
	}
	asking, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	answers := make(chan snapshot, 1) // one question at a time, so its answer never blocks
	ask := func() { asked.Go(func() { answers <- e.snapshot(asking, r) }) }

	f := &followed{env: e, request: r, started: e.clock.now(), view: e.newView(r),
		last: lifecycle.OperationStatus{Operation: r.operation, Node: r.target.ref()}}
	ticks, stop := f.view.ticks()
	defer stop()
	ask()
	var again <-chan time.Time
	pause := pollFirst
	for {
		select {
		case s := <-answers:
			if ctx.Err() != nil {
				return f.last, f.interrupted()
			}
			if done, err := f.take(s); done {
				return f.last, err
			}
			again = e.clock.after(min(pause, r.limit-e.clock.now().Sub(f.started)))
			pause = min(2*pause, pollEvery)
		case <-again:
			again = nil
			ask()
		case <-ticks:
			f.view.show(f.last, f.note)
		case <-ctx.Done():
			return f.last, f.interrupted()
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

// followed is the state of one waiting.
type followed struct {
	env     *env
	request followRequest
	view    view
	started time.Time
	last    lifecycle.OperationStatus
	note    string
	// silentSince is when the last answer stayed away; zero while they come.
	silentSince time.Time
}

// take uses one answer and reports whether the waiting is over.
func (f *followed) take(s snapshot) (done bool, err error) {
	now := f.env.clock.now()
	if s.err != nil {
		if f.silentSince.IsZero() {
			f.silentSince = now
		}
		f.note = fmt.Sprintf("nobody answers for the operation: %s", s.err)
		if now.Sub(f.silentSince) >= silenceBudget || errors.Is(s.err, &schema.Error{Kind: schema.KindNotFound}) {
			return true, f.lost(s.err)
		}
	} else {
		f.silentSince, f.note, f.last = time.Time{}, s.note, s.status
	}
	f.view.show(f.last, f.note)
	state := f.last.Operation.Status
	switch {
	case s.err == nil && state.Ended(), s.err == nil && state == lifecycle.OperationParked && !f.request.throughParks:
		return true, nil
	case now.Sub(f.started) >= f.request.limit:
		return true, f.timedOut()
	}
	return false, nil
}

func (f *followed) timedOut() error {
	return f.pending(fmt.Sprintf("stopped waiting after %s: the operation goes on", span(f.request.limit)))
}

func (f *followed) interrupted() error {
	return f.pending("stopped waiting: the operation goes on")
}

func (f *followed) pending(why string) error {
	name, action := f.request.target.name(), f.request.operation.Action
	return &exitError{schema.ExitPending, []string{why, "follow it with: " + lifecycle.OpCommand("watch", action, name),
		"undo it with:   " + lifecycle.OpCommand("cancel", action, name)}}
}

// lost ends a waiting in which nobody answers any more.
func (f *followed) lost(cause error) error {
	return &exitError{schema.KindOf(cause).Info().Exit, []string{
		"error: stopped waiting, nobody answers for the operation: " + cause.Error(),
		"the operation goes on as soon as Temporal and a worker are up",
		"follow it with: " + lifecycle.OpCommand("watch", f.request.operation.Action, f.request.target.name()),
	}}
}

// snapshot asks the operation itself, else the admin API for its record, else
// Temporal for the result of a run that is closed already.
func (e *env) snapshot(ctx context.Context, r followRequest) snapshot {
	var err error
	if r.temporal != nil {
		var st lifecycle.OperationStatus
		if st, err = statusOf(ctx, r); err == nil {
			return snapshot{status: e.closedResult(ctx, r, st)}
		}
	}
	st, recordErr := e.record(ctx, r)
	if recordErr == nil {
		return e.recorded(ctx, r, st, err)
	}
	if r.temporal == nil {
		return snapshot{err: recordErr}
	}
	if st, resultErr := resultOf(ctx, r, statusBudget); resultErr == nil {
		return snapshot{status: st}
	}
	return snapshot{err: err}
}

// recorded is the record, or the word of the run that the record names when the
// followed one was reset: such an operation goes on as another run.
func (e *env) recorded(ctx context.Context, r followRequest, st lifecycle.OperationStatus, why error) snapshot {
	if r.temporal != nil && st.Operation.RunID != r.operation.RunID {
		r.operation.RunID = st.Operation.RunID
		if now, err := statusOf(ctx, r); err == nil {
			return snapshot{status: e.closedResult(ctx, r, now)}
		}
	}
	return snapshot{status: e.closedResult(ctx, r, st), note: secondHand(why)}
}

func statusOf(ctx context.Context, r followRequest) (lifecycle.OperationStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusBudget)
	defer cancel()
	return r.temporal.Status(ctx, r.operation.WorkflowID, r.operation.RunID)
}

// secondHand explains why the state comes from the database's record.
func secondHand(err error) string {
	switch {
	case err == nil:
		return "Temporal is not asked; this is the admin API's record"
	case errors.Is(err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: "no_worker"}):
		return "no worker answers; this is the admin API's record"
	}
	return fmt.Sprintf("this is the admin API's record: %s", err)
}

// closedResult is the run's own result once the operation is over, and st until
// then or when it cannot be had.
func (e *env) closedResult(ctx context.Context, r followRequest, st lifecycle.OperationStatus) lifecycle.OperationStatus {
	if !st.Operation.Status.Ended() || r.temporal == nil {
		return st
	}
	if final, err := resultOf(ctx, r, resultBudget); err == nil {
		return final
	}
	return st
}

func resultOf(ctx context.Context, r followRequest, budget time.Duration) (lifecycle.OperationStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	return r.temporal.Result(ctx, r.operation.WorkflowID, r.operation.RunID)
}
