package workflows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// place is an operation that reaches a cell while it runs.
type place struct {
	*bed
	cell cell
	// at is the time of the next callback.
	at time.Duration
	// reached is set once the operation was in the cell. decided is the index of the
	// decision under test.
	reached bool
	decided int
}

// enter prepares a world in which the operation reaches the cell, and checks that it did.
func enter(t *testing.T, c cell) *place {
	t.Helper()
	w := newWorld(c.from)
	w.creates = c.phase.OnCreate || c.action == lifecycle.ActionTerminate
	p := &place{bed: setup(t, c.action, w), cell: c}
	p.in.Options = c.options
	p.events(c.phase.Name)
	switch c.at {
	case atParked:
		w.fails(c.phase.Name)
		p.at = p.parkTime()
	case atBlocked:
		w.block()
		p.at = reachTime
	case atRecording:
		w.fail["finish completed"] = errDown
		p.at = reachTime
	case atRetrying:
		w.hold(c.phase.Name)
		p.at = p.retryTime(c.phase)
	default:
		w.hold(c.phase.Name)
		p.at = reachTime
		p.again()
	}
	switch c.at {
	case atUndoing:
		p.cancelWith(func() { w.hold(undoOf(c)) })
	case atUndoParked:
		p.cancelWith(func() { w.fails(undoOf(c)) })
	case atUndoRetrying:
		p.cancelWith(func() { w.hold(undoOf(c)) })
		plan, _ := lifecycle.PlanOf(c.action, c.options)
		p.at += p.retryTime(*plan.Undo)
	case atRecordingCancel:
		p.cancelWith(func() {
			w.failWith(callFinishCanceled, errDown)
			if c.phase.Name == lifecycle.PhaseRestoreCordon { // its undo has the same task
				w.free(task.WorkloadUncordon)
			}
		})
	}
	p.env.RegisterDelayedCallback(p.requireReached, p.at)
	return p
}

// reachTime is enough for a situation that needs no budget to end.
const reachTime = 5 * time.Second

var errDown = schema.NewError(schema.KindServiceUnavailable, "no connection")

// parkTime is when a phase that fails parks: at once, or when the budget of an event ends.
func (p *place) parkTime() time.Duration {
	if eventOf(p.cell.phase.Name) != "" {
		return p.cell.phase.Budget + reachTime
	}
	return reachTime
}

// retryTime is when the first retry of a phase that waits for an unavailable party runs. The
// test environment ends an activity after ten attempts, so the phase parks by then.
func (p *place) retryTime(phase lifecycle.PhaseSpec) time.Duration {
	switch {
	case phase.Name == lifecycle.PhaseWaitReboot:
		return 170 * time.Second
	case phase.Name == lifecycle.PhaseAgent:
		return 130 * time.Second
	case callOf(phase.Name) != "":
		return 400 * time.Second
	}
	return 230 * time.Second
}

// again makes a phase without a wait run: it parks, and a retry waits for the node.
func (p *place) again() {
	if p.cell.phase.Name != lifecycle.PhaseSKU {
		return
	}
	p.then(func() { p.decide(lifecycle.DecisionRetry, "because") })
	p.at += reachTime
}

func (p *place) cancelWith(prepare func()) {
	p.then(func() {
		prepare()
		p.decide(lifecycle.DecisionCancel, "because")
	})
	p.at += reachTime
}

func undoOf(c cell) string {
	plan, _ := lifecycle.PlanOf(c.action, c.options)
	return plan.Undo.Name
}

// then runs f a second later.
func (p *place) then(f func()) { p.later(time.Second, f) }

// after runs f a second after the callback that calls it, and requires that it ran.
func (p *place) after(f func()) {
	ran := false
	p.env.RegisterDelayedCallback(func() { ran = true; f() }, time.Second)
	p.t.Cleanup(func() { require.True(p.t, ran, "the operation ended before the check") })
}

func (p *place) later(d time.Duration, f func()) {
	p.at += d
	p.env.RegisterDelayedCallback(f, p.at)
}

// requireReached checks that the operation is in the cell.
func (p *place) requireReached() {
	p.reached = true
	st := p.status()
	phases := st.Operation.Phases
	i := slices.IndexFunc(phases, func(ph lifecycle.Phase) bool { return ph.Name == p.cell.phase.Name })
	want, state := lifecycle.OperationRunning, lifecycle.PhaseRunning
	switch p.cell.at {
	case atRetrying:
		want, state = lifecycle.OperationParked, lifecycle.PhaseParked
		requireRetrying(p.t, st)
	case atParked, atBlocked:
		want, state = lifecycle.OperationParked, lifecycle.PhaseParked
	case atUndoing, atUndoParked, atUndoRetrying:
		i = len(phases) - 1
		require.Equal(p.t, undoOf(p.cell), phases[i].Name)
		if p.cell.at != atUndoing {
			want, state = lifecycle.OperationParked, lifecycle.PhaseParked
		}
		if p.cell.at == atUndoRetrying {
			requireRetrying(p.t, st)
		}
	case atRecordingCancel:
		state = lifecycle.PhaseCanceled
		require.Contains(p.t, p.world.story(), callFinishCanceled+"!")
	case atRecording:
		require.Contains(p.t, p.world.story(), "finish completed!")
	}
	require.Equal(p.t, want, st.Operation.Status)
	require.Equal(p.t, state, phases[i].State)
}

// requireRetrying requires that the first retry of the parked phase runs now.
func requireRetrying(t *testing.T, st lifecycle.OperationStatus) {
	t.Helper()
	require.NotNil(t, st.Operation.Stuck)
	require.Equal(t, &lifecycle.Retrying{Tries: 1}, st.Operation.Stuck.Retrying)
}

// requireDecided sends the decision and, after it, requires its one legal effect.
func (p *place) requireDecided(d lifecycle.Decision) {
	legal := p.cell.legal(d)
	if legal && d != lifecycle.DecisionSkip && d != lifecycle.DecisionCancel {
		p.world.repairAll()
	}
	before := p.status()
	if before.Operation.Stuck != nil {
		p.requireOffered(*before.Operation.Stuck)
	}
	p.decided = len(p.resolved)
	p.decide(d, "because")
	if !legal {
		p.after(func() { p.requireRejected(d, before) })
	}
}

// requireRejected requires that the last decision was rejected with the list of the
// possible ones, and that it changed nothing.
func (p *place) requireRejected(d lifecycle.Decision, before lifecycle.OperationStatus) {
	e := failureOf(p.resolved[len(p.resolved)-1])
	require.Equal(p.t, schema.KindInvalidRequest, e.Kind, d)
	require.Equal(p.t, "decision_unfit", e.Reason)
	require.Contains(p.t, e.Message, "possible now: ")
	require.True(p.t, strings.HasSuffix(e.Message, p.cell.possible()), e.Message)
	require.Equal(p.t, before, p.status(), "a rejected decision changes nothing")
}

// possible is what a rejection names.
func (c cell) possible() string {
	legal := c.allLegal()
	if legal == nil {
		return "possible now: nothing"
	}
	names := make([]string, len(legal))
	for i, d := range legal {
		names[i] = string(d)
	}
	return "possible now: " + strings.Join(names, ", ")
}

// requireOffered requires that the options are the legal decisions, each with its command,
// which names the park.
func (p *place) requireOffered(stuck lifecycle.Stuck) {
	var offered []lifecycle.Decision
	options := stuck.Options
	for _, o := range options {
		if o.Decision == lifecycle.DecisionBootstrap {
			require.True(p.t, p.cell.offersBundle())
			require.Equal(p.t, "gpuaas node bootstrap-script gpu-17", o.Command)
			continue
		}
		offered = append(offered, o.Decision)
		require.Equal(p.t, o.Decision, decisionOf(p.t, o))
		require.Contains(p.t, o.Command, " --phase "+stuck.Phase+" --stuck-since "+stuck.Since.Format(time.RFC3339Nano)+" ")
	}
	require.Equal(p.t, p.cell.offersBundle(), len(offered) < len(options))
	require.ElementsMatch(p.t, p.cell.allLegal(), offered)
	require.Equal(p.t, lifecycle.HarmNone, options[0].Harm)
}

// decisionOf parses the printed command as an operator would type it.
func decisionOf(t *testing.T, o lifecycle.Option) lifecycle.Decision {
	t.Helper()
	var verb, node string
	_, err := fmt.Sscanf(o.Command, "gpuaas op %s %s", &verb, &node)
	require.NoError(t, err, o.Command)
	require.Equal(t, "gpu-17", node)
	require.Contains(t, o.Command, "--operation op-1")
	return lifecycle.Decision(verb)
}

// finish repairs the world. If the operation is parked, it takes the first option.
func (p *place) finish() {
	p.later(10*time.Second, func() {
		if !p.env.IsWorkflowCompleted() {
			p.world.repairAll()
			p.sendEvents()
		}
	})
	p.later(10*time.Second, func() {
		if p.env.IsWorkflowCompleted() {
			return
		}
		if stuck := p.status().Operation.Stuck; stuck != nil {
			p.decide(decisionOf(p.t, stuck.Options[0]), "because")
		}
	})
}

// endIt takes the option that helps most if nothing recovers.
func (p *place) endIt() {
	if p.env.IsWorkflowCompleted() {
		return
	}
	stuck := p.status().Operation.Stuck
	if stuck == nil {
		return
	}
	for _, d := range []lifecycle.Decision{lifecycle.DecisionCancel, lifecycle.DecisionSkip} {
		if slices.ContainsFunc(stuck.Options, func(o lifecycle.Option) bool { return o.Decision == d }) {
			p.decide(d, "nothing recovers")
			return
		}
	}
	require.Fail(p.t, "no option ends the operation", "%v", stuck.Options)
}

// requireEnd runs the operation and requires its outcome.
func (p *place) requireEnd(canceled bool) lifecycle.OperationStatus {
	want := lifecycle.OperationCompleted
	if canceled {
		want = lifecycle.OperationCanceled
	}
	st := p.run()
	require.Equal(p.t, want, st.Operation.Status)
	p.requireRecorded(canceled)
	return st
}

// requireEffect requires what an accepted decision did to its phase.
func (p *place) requireEffect(d lifecycle.Decision, phases []lifecycle.Phase) {
	name := p.cell.phase.Name
	if slices.Contains([]situation{atUndoing, atUndoParked, atUndoRetrying}, p.cell.at) {
		name = undoOf(p.cell)
	}
	i := slices.IndexFunc(phases, func(ph lifecycle.Phase) bool { return ph.Name == name })
	phase := phases[i]
	want := map[lifecycle.Decision]lifecycle.PhaseState{
		lifecycle.DecisionCancel: lifecycle.PhaseCanceled, lifecycle.DecisionSkip: lifecycle.PhaseSkipped,
		lifecycle.DecisionForce: lifecycle.PhaseForced, lifecycle.DecisionRetry: lifecycle.PhaseCompleted,
		lifecycle.DecisionExtend: lifecycle.PhaseCompleted,
	}
	require.Equal(p.t, want[d], phase.State)
	switch d {
	case lifecycle.DecisionCancel:
		plan, _ := lifecycle.PlanOf(p.cell.action, p.cell.options)
		require.Equal(p.t, plan.Undo != nil, phases[len(phases)-1].Name != plan.Phases[len(plan.Phases)-1].Name)
	case lifecycle.DecisionSkip:
		require.Equal(p.t, "because", phase.Reason)
	default:
		require.Greater(p.t, phase.Attempt, 1)
	}
}

// requireRecorded requires the record of the outcome: the node's state, an answer to each
// decision, and a record of each accepted one.
func (p *place) requireRecorded(canceled bool) {
	w := p.world
	require.True(p.t, p.reached, "the operation ended before")
	require.NotNil(p.t, w.finished, "nothing was recorded")
	state := w.claimed
	if w.finished.Node != "" {
		state = w.finished.Node
	}
	want := p.cell.endState(canceled)
	if p.cell.action == lifecycle.ActionTerminate && w.finished.Instance == lifecycle.InstanceTerminated {
		want = lifecycle.NodeRegistered // the cancel came too late
	}
	if strings.HasPrefix(w.finished.Outcome, "not repaired") {
		want = lifecycle.NodeQuarantined // the last rung was skipped
	}
	require.Equal(p.t, want, state)
	require.Equal(p.t, state, w.document.Node.State)
	require.Nil(p.t, w.document.Operation.Stuck)
	accepted := 0
	for _, err := range p.resolved {
		require.NotErrorIs(p.t, err, errUnanswered)
		if err == nil {
			accepted++
		}
	}
	require.Len(p.t, w.decisions, accepted)
}

// callFinishCanceled is the world's record of the end of a canceled operation.
const callFinishCanceled = "finish " + string(lifecycle.OperationCanceled)
