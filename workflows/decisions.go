package workflows

import (
	"cmp"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// decisions accepts the operators' decisions about an operation, one at a time.
type decisions struct {
	*state
	// interrupt ends the current phase's work.
	interrupt workflow.CancelFunc
	// decision is pending until the current phase applies it. applied is the one that the
	// phase records and applies, and whose response waits until that is done.
	decision, applied *lifecycle.ResolveRequest
	// updates counts the decisions that this run accepted.
	updates int
	// decided are the newest decisions that phases took, those of the runs before
	// included. Temporal answers a repeated decision only within one run.
	decided []lifecycle.ResolveRequest
	// runBefore is the run that this one continues, "" if there is none.
	runBefore string
}

// resolve passes a decision to the current phase and returns when the phase took
// it. It rejects a decision that the operation dropped because it was canceled or
// ended first, or because the database rejects its record. A cancel before the claim is accepted at once: it takes effect when the
// claim is decided, however long the database is unavailable.
func (ds *decisions) resolve(ctx workflow.Context, r lifecycle.ResolveRequest) (lifecycle.Resolution, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	r.ID = workflow.GetCurrentUpdateInfo(ctx).ID
	ds.updates++
	if first := ds.takenBefore(r.ID); first != nil {
		return lifecycle.Resolution{OperationStatus: clone(ds.status), Request: *first}, nil
	}
	mine := &r
	ds.decision = mine
	if !ds.answered {
		return lifecycle.Resolution{OperationStatus: clone(ds.status), Request: r}, nil
	}
	if ds.interrupt != nil {
		ds.interrupt()
	}
	if err := workflow.Await(free, func() bool { return ds.decision != mine && ds.applied != mine || ds.closed }); err != nil {
		return lifecycle.Resolution{}, err
	}
	if ds.takenBefore(r.ID) == nil {
		return lifecycle.Resolution{}, asFailure(schema.NewError(schema.KindDecisionOutdated,
			"the operation ended or was canceled before it took the decision to %s", r.Decision).WithReason(lifecycle.ReasonOperationOver))
	}
	return lifecycle.Resolution{OperationStatus: clone(ds.status), Request: r}, nil
}

// maxDecided is how many decisions an operation remembers for a renewal: a decision is
// repeated soon, because its response was lost.
const maxDecided = 50

// accept makes the pending decision the one that the phase applies. A cancel that is sent from
// now on follows it, and does not replace it. The decision is taken once its record is stored
// or is written in the background.
func (ds *decisions) accept() {
	ds.applied, ds.decision = ds.decision, nil
}

// take makes the decision that the phase applies one that a phase took.
func (ds *decisions) take() {
	ds.decided = append(ds.decided, *ds.applied)
	if len(ds.decided) > maxDecided {
		ds.decided = ds.decided[1:]
	}
}

// lastTaken returns the newest decision that a phase took, the zero value if none did.
func (ds *decisions) lastTaken() (last lifecycle.ResolveRequest) {
	if n := len(ds.decided); n > 0 {
		last = ds.decided[n-1]
	}
	return last
}

// takenBefore returns the decision with the ID that a phase took, nil if none did.
func (ds *decisions) takenBefore(id string) *lifecycle.ResolveRequest {
	i := slices.IndexFunc(ds.decided, func(r lifecycle.ResolveRequest) bool { return r.ID == id })
	if i < 0 {
		return nil
	}
	return &ds.decided[i]
}

// canceledEarly reports whether the operation was canceled before its claim was decided.
// If the claim then succeeds, the first phase takes the cancel.
func (ds *decisions) canceledEarly(ctx workflow.Context) bool {
	early := ds.decision != nil || ctx.Err() != nil
	ds.decision = nil
	return early
}

// validate returns the reason why a decision is not possible now, or nil. A rejection
// adds no event to the history.
func (ds *decisions) validate(r lifecycle.ResolveRequest) *schema.Error {
	if e := malformed(r); e != nil {
		return e
	}
	if e := ds.outdated(r); e != nil {
		return e
	}
	if e := ds.unaddressed(r); e != nil {
		return e
	}
	switch {
	case ds.status.Operation.Status.Ended():
		return schema.NewError(schema.KindDecisionOutdated, "the operation has ended").WithReason(lifecycle.ReasonOperationOver)
	case !ds.follows(r.Decision):
		return schema.NewError(schema.KindOperationInProgress, "the operation is taking another decision")
	case !ds.answered && r.Decision != lifecycle.DecisionCancel:
		return schema.NewError(schema.KindInvalidRequest, "the operation has not claimed its node yet; possible now: cancel").
			WithReason("decision_unfit").WithNext(lifecycle.OpCommand("show", ds.in.Action, ds.name()))
	case !ds.allows(r.Decision):
		return ds.unfit(r.Decision)
	}
	return nil
}

// follows reports whether a decision may be sent while another one is taken: a cancel
// replaces any other that is pending, so that a person who waits for the database can change
// the mind, and follows one that is applied.
func (ds *decisions) follows(d lifecycle.Decision) bool {
	before := cmp.Or(ds.decision, ds.applied)
	return before == nil || d == lifecycle.DecisionCancel && before.Decision != d && ds.allows(d)
}

// The longest interface and run ID of a decision. An operation carries its decisions to the
// next run, so all their fields are bounded.
const (
	maxVia   = 16
	maxRunID = 64
)

// malformed rejects a decision that is none, or whose texts the audit trail and the
// details could not show.
func malformed(r lifecycle.ResolveRequest) *schema.Error {
	switch reason := strings.TrimSpace(r.Reason); {
	case !slices.Contains(lifecycle.Decisions(), r.Decision):
		return schema.NewError(schema.KindInvalidRequest, "unknown decision %s", text.Quote(string(r.Decision), maxReason))
	case reason == "":
		return schema.NewError(schema.KindInvalidRequest, "the decision to %s needs a reason", r.Decision).WithReason("reason_missing")
	case reason == lifecycle.ReasonPlaceholder:
		return schema.NewError(schema.KindInvalidRequest, "the reason %q is the placeholder of the printed command; give a reason",
			lifecycle.ReasonPlaceholder).WithReason("reason_missing")
	case !text.IsLine(r.Reason, wire.MaxReason):
		return schema.NewError(schema.KindInvalidRequest, "the reason must be one line of at most %d characters", wire.MaxReason).WithReason("bad_reason")
	case strings.TrimSpace(r.By) == lifecycle.NamePlaceholder:
		return schema.NewError(schema.KindInvalidRequest, "by is the placeholder %q of the printed input; give your name",
			lifecycle.NamePlaceholder).WithReason("bad_by")
	case strings.TrimSpace(r.By) == "" || !text.IsLine(r.By, wire.MaxActor):
		return schema.NewError(schema.KindInvalidRequest, "by must be a name in one line of at most %d characters", wire.MaxActor).WithReason("bad_by")
	case r.Via != "" && !text.IsToken(r.Via, maxVia, "-"):
		return schema.NewError(schema.KindInvalidRequest, "via must be a word of at most %d characters", maxVia).WithReason("bad_via")
	case len(r.RunID) > maxRunID:
		return schema.NewError(schema.KindInvalidRequest, "run_id must have at most %d characters", maxRunID).WithReason("bad_run_id")
	}
	return nil
}

// outdated rejects a decision that is addressed to another operation or phase than the
// current one, to another run, or to an earlier time at which the operation was parked.
func (ds *decisions) outdated(r lifecycle.ResolveRequest) *schema.Error {
	o := ds.status.Operation
	var about, current string
	switch phase := ds.spec().Name; {
	case r.OperationID != "" && r.OperationID != o.OperationID:
		about, current = "operation "+text.Quote(r.OperationID, maxReason), "the current operation is "+o.OperationID
	case r.Phase != "" && r.Phase != phase:
		about, current = "phase "+text.Quote(r.Phase, maxReason), "the current phase is "+phase
	case ds.ofAnotherRun(r):
		about, current = "run "+text.Quote(r.RunID, maxReason), "the current run is "+o.RunID
	case r.StuckSince != nil && o.Stuck == nil:
		about, current = "the operation as parked at "+clock(*r.StuckSince), "it is no longer parked"
	case r.StuckSince != nil && !r.StuckSince.Equal(o.Stuck.Since):
		about, current = "the operation as parked at "+clock(*r.StuckSince), "it was parked again at "+clock(o.Stuck.Since)
	default:
		return nil
	}
	return schema.NewError(schema.KindDecisionOutdated, "the decision to %s is about %s; %s", r.Decision, about, current).
		WithNext(lifecycle.OpCommand("show", o.Action, ds.name()))
}

// unaddressed rejects a decision that may cause damage and does not name its operation. One
// that a person types in the Web UI, which has no interface, must also name the park, or the
// phase that runs: the operation may have moved on since the person read its state.
func (ds *decisions) unaddressed(r lifecycle.ResolveRequest) *schema.Error {
	stuck := ds.status.Operation.Stuck
	var missing []string
	if r.OperationID == "" {
		missing = append(missing, "operation_id")
	}
	switch {
	case r.Via != "":
	case stuck != nil && r.StuckSince == nil:
		missing = append(missing, "stuck_since")
	case stuck == nil && r.Phase == "":
		missing = append(missing, "phase")
	}
	if len(missing) == 0 || !ds.harmful(r.Decision) {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "a decision to %s must say what it is about: add %s", r.Decision, strings.Join(missing, " and ")).
		WithReason("address_missing").WithNext("copy the input that Current Details shows, or " + lifecycle.OpCommand("show", ds.in.Action, ds.name()))
}

// harmful reports whether a decision may cause damage in the current phase.
func (ds *decisions) harmful(d lifecycle.Decision) bool {
	return overrides(d) || slices.ContainsFunc(ds.plan.ChoicesIn(ds.spec()), func(o lifecycle.Option) bool {
		return o.Decision == d && o.Harm != lifecycle.HarmNone
	})
}

// overrides reports whether a decision continues an operation against a phase's result.
func overrides(d lifecycle.Decision) bool {
	return d == lifecycle.DecisionForce || d == lifecycle.DecisionSkip
}

// ofAnotherRun reports whether a force or a skip was sent to another run: a reset applies it
// again, and a person must decide it again.
func (ds *decisions) ofAnotherRun(r lifecycle.ResolveRequest) bool {
	return overrides(r.Decision) && r.RunID != "" && r.RunID != ds.status.Operation.RunID && r.RunID != ds.runBefore
}

// allows reports whether the decision is possible now. Retry and extend must be options
// of a parked phase. Nothing may be decided while the outcome is recorded.
func (ds *decisions) allows(d lifecycle.Decision) bool {
	if ds.closed {
		return false
	}
	switch spec := ds.spec(); d {
	case lifecycle.DecisionCancel:
		return !ds.undoing
	case lifecycle.DecisionRetry, lifecycle.DecisionExtend:
		s := ds.status.Operation.Stuck
		return s != nil && slices.ContainsFunc(s.Options, func(o lifecycle.Option) bool { return o.Decision == d })
	default:
		return spec.Allows(d)
	}
}

func (ds *decisions) unfit(d lifecycle.Decision) *schema.Error {
	var possible []string
	for _, other := range lifecycle.Decisions() {
		if ds.allows(other) {
			possible = append(possible, string(other))
		}
	}
	if possible == nil {
		possible = []string{"nothing"}
	}
	phase := ds.status.Operation.Phases[ds.phase]
	return schema.NewError(schema.KindInvalidRequest, "cannot %s in phase %s, which is %s; possible now: %s",
		d, phase.Name, phase.State, strings.Join(possible, ", ")).
		WithReason("decision_unfit").WithNext(lifecycle.OpCommand("show", ds.in.Action, ds.name()))
}
