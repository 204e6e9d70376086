package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Bounds of the runs that a process keeps.
const (
	maxBulkRuns = 20 // that are shown
	maxBulkOpen = 4  // at the same time
	maxFailures = 50 // that are listed by name
	bulkTime    = 45 * time.Second
)

// bulkRuns are the bulk runs of this process. A run is not stored: the operations that it starts
// are, and a run that ended early is planned again.
type bulkRuns struct {
	console *Console
	mu      sync.Mutex
	runs    []*bulkRun // oldest first
	stopped bool
	open    sync.WaitGroup
}

// bulkRun is one run. Its rows change under its lock.
type bulkRun struct {
	id, reason string
	by         Subject
	session    sessionID
	verb       bulkVerb
	parallel   int
	started    time.Time

	records sync.Mutex // held while a stop is recorded
	mu      sync.Mutex
	rows    []bulkRow
	why     string         // why no further request is sent
	stopped *audit.Subject // who stopped the run, until the audit trail has it
	endedAt time.Time
}

// bulkRow is a target with the outcome of its request.
type bulkRow struct {
	bulkTarget

	outcome bulkOutcome
	err     *schema.Error
}

// bulkOutcome is the outcome of the request about one target.
type bulkOutcome string

const (
	bulkNotSent  bulkOutcome = "not sent"
	bulkSent     bulkOutcome = "sent" // without a response yet
	bulkAccepted bulkOutcome = "accepted"
	bulkWaiting  bulkOutcome = "accepted, waiting" // Temporal has the operation, which a worker or the database delays
	bulkOutdated bulkOutcome = "outdated"          // the operation continued, ended or parked again before
	bulkUnknown  bulkOutcome = "outcome unknown"   // a service did not respond: the request may have been accepted
	bulkFailed   bulkOutcome = "failed"
)

// unavailable is why a run stops when a service does not respond to the request about a target. The
// message names the service.
func (t bulkTarget) unavailable(err error) string {
	return fmt.Sprintf("a service is unavailable, at %s: %s", t.host, schema.AsError(err).Message)
}

// find returns the run with an ID.
func (b *bulkRuns) find(id string) (*bulkRun, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.runs, func(r *bulkRun) bool { return r.id == id })
	if i < 0 {
		return nil, false
	}
	return b.runs[i], true
}

// list returns the runs, newest first.
func (b *bulkRuns) list() (all []bulkView) {
	b.mu.Lock()
	runs := slices.Clone(b.runs)
	b.mu.Unlock()
	for _, r := range slices.Backward(runs) {
		all = append(all, r.view())
	}
	return all
}

// start starts a run with an ID, for a plan with a target at least. A second start with the ID
// returns the first run.
func (b *bulkRuns) start(r *request, id string, plan *bulkPlan, reason string, parallel int) (*bulkRun, error) {
	run := &bulkRun{id: id, reason: reason, by: r.Subject, session: r.id, verb: plan.verb, parallel: parallel, started: r.Now}
	for _, t := range plan.chosen {
		run.rows = append(run.rows, bulkRow{bulkTarget: t, outcome: bulkNotSent})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.runs, func(other *bulkRun) bool { return other.id == id }); i >= 0 {
		return b.runs[i], nil
	}
	open := 0
	for _, other := range b.runs {
		if !other.ended() {
			open++
		}
	}
	switch {
	case !schema.IsID(id):
		return nil, schema.NewError(schema.KindInvalidRequest, "the form has no key").WithReason("bad_idempotency_key")
	case b.stopped:
		return nil, schema.NewError(schema.KindServiceUnavailable, "gpuaas-api is stopping").WithReason("stopping")
	case open >= maxBulkOpen:
		return nil, schema.NewError(schema.KindRateLimited, "%d bulk runs are open; wait until one ends", open).WithReason("bulk_runs")
	}
	if len(b.runs) >= maxBulkRuns { // fewer of them are open
		i := slices.IndexFunc(b.runs, (*bulkRun).ended)
		b.runs = slices.Delete(b.runs, i, i+1)
	}
	b.runs = append(b.runs, run)
	b.open.Go(func() { b.work(run) })
	return run, nil
}

// stop makes all runs start no further request and waits for those that were sent.
func (b *bulkRuns) stop() {
	b.mu.Lock()
	b.stopped = true
	runs := slices.Clone(b.runs)
	b.mu.Unlock()
	for _, r := range runs {
		r.stop("gpuaas-api stopped")
	}
	b.open.Wait()
}

// work sends the requests of a run, some at a time.
func (b *bulkRuns) work(run *bulkRun) {
	var group errgroup.Group
	group.SetLimit(run.parallel)
	for i := range run.rows {
		group.Go(func() error {
			if !run.over() {
				b.send(run, i)
			}
			return nil
		})
	}
	_ = group.Wait() // each row has its own error
	run.mu.Lock()
	run.endedAt = b.console.cfg.Now()
	run.mu.Unlock()
	b.console.hub.note(watchAll)
}

// send sends the request about one target as the subject who started the run, whose session must
// still be valid.
func (b *bulkRuns) send(run *bulkRun, i int) {
	ctx, cancel := context.WithTimeout(context.Background(), bulkTime)
	defer cancel()
	row := run.rows[i] // no other goroutine writes it
	subject, err := b.console.sessions.check(ctx, run.session, false)
	switch {
	case schema.KindOf(err) == schema.KindUnauthenticated:
		run.stop("the session of " + run.by.Name + " has ended")
		return
	case err != nil:
		run.stop(row.unavailable(err))
		return
	}
	if !run.next(i) {
		return
	}
	path, body := row.request(run.verb, run.reason)
	raw, err := json.Marshal(body)
	if err == nil {
		_, err = b.console.call(ctx, apiCall{by: subject, method: "POST", target: path, body: raw, key: run.id + ":" + cmp.Or(row.operationID, row.nodeID)})
	}
	row.answered(run.verb, err)
	if schema.KindOf(err) == schema.KindServiceUnavailable && !appliedLater(row.err.Reason) {
		run.stop(row.unavailable(err))
	}
	run.mu.Lock()
	run.rows[i] = row
	run.mu.Unlock()
}

// answered sets the outcome of the request.
func (r *bulkRow) answered(verb bulkVerb, err error) {
	if err == nil {
		r.outcome = bulkAccepted
		return
	}
	r.err = schema.AsError(err)
	switch reason := r.err.Reason; {
	case r.err.Kind == schema.KindDecisionOutdated:
		r.outcome = bulkOutdated
	case appliedLater(reason), verb.Decision == "" && reason == lifecycle.ReasonResponseLost:
		r.outcome = bulkAccepted
	case verb.Decision == "" && lifecycle.StartAccepted(reason):
		r.outcome = bulkWaiting
	case r.err.Kind == schema.KindServiceUnavailable && lifecycle.MaybeAccepted(reason):
		r.outcome, r.err = bulkUnknown, r.err.WithNext(r.look())
	default:
		r.outcome = bulkFailed
	}
}

// appliedLater reports whether the operation has the decision and applies it later.
func appliedLater(reason string) bool {
	return reason == lifecycle.ReasonCancelStored || reason == lifecycle.ReasonDecisionAccepted
}

// look is the command that shows whether the request was accepted.
func (t bulkTarget) look() string {
	if t.operationID != "" {
		return "gpuaas op show " + t.operationID
	}
	return "gpuaas op list --node " + t.host
}

// next reports whether the request about the i-th target may be sent, and marks it as sent.
func (r *bulkRun) next(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why != "" {
		return false
	}
	r.rows[i].outcome = bulkSent
	return true
}

func (r *bulkRun) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.endedAt.IsZero()
}

// bulkView is the data of the template bulkrun.
type bulkView struct {
	ID, Verb, Reason, By, Stopped string
	StartedAt, EndedAt            time.Time
	// Unrecorded is true if the audit trail may not have that an operator stopped the run.
	Unrecorded bool
	// Done is the number of requests with a response.
	Total, Done int
	Outcomes    []bulkGroup
	// Failures are groups of equal reasons: of what failed or has an unknown outcome and, after the end of the run,
	// of what was not sent. Rows are the first of these, and More the number of others.
	Failures []bulkGroup
	Rows     []bulkFailure
	More     int
}

// bulkFailure is a row that failed, whose outcome is not known, or that was not sent.
type bulkFailure struct{ NodeID, Host, Error, Next string }

// view returns the state of the run now.
func (r *bulkRun) view() bulkView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := bulkView{ID: r.id, Verb: r.verb.Name, Reason: r.reason, By: r.by.Name, Stopped: r.why, StartedAt: r.started, EndedAt: r.endedAt,
		Unrecorded: r.stopped != nil, Total: len(r.rows)}
	outcomes, failures := &bulkPlan{}, &bulkPlan{}
	for _, row := range r.rows {
		outcomes.add(row.bulkTarget, false, string(row.outcome), "")
		if row.outcome != bulkNotSent && row.outcome != bulkSent {
			v.Done++
		}
		switch {
		case row.outcome == bulkFailed || row.outcome == bulkUnknown:
			failures.add(row.bulkTarget, false, cmp.Or(row.err.Reason, string(row.err.Kind)), "")
			v.failed(row, row.err.Message, row.err.Next)
		case row.outcome == bulkNotSent && !r.endedAt.IsZero():
			failures.add(row.bulkTarget, false, string(bulkNotSent), "")
			v.failed(row, "not sent: "+r.why, "")
		}
	}
	v.Outcomes, v.Failures = outcomes.Groups, failures.Groups
	return v
}

// failed adds a row with what happened instead, up to maxFailures.
func (v *bulkView) failed(row bulkRow, why, next string) {
	if len(v.Rows) == maxFailures {
		v.More++
		return
	}
	v.Rows = append(v.Rows, bulkFailure{row.nodeID, row.host, why, next})
}
