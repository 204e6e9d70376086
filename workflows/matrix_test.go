package workflows

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// situation is what an operation does when a decision arrives.
type situation string

const (
	atRunning         situation = "running"
	atParked          situation = "parked"
	atBlocked         situation = "parked because of workloads"
	atUndoing         situation = "undoing"
	atRetrying        situation = "retrying while parked"
	atUndoRetrying    situation = "retrying the undo while parked"
	atUndoParked      situation = "undo parked"
	atRecording       situation = "recording the success"
	atRecordingCancel situation = "recording the cancel"
)

// cell is one place of the matrix: an operation in a phase and a situation.
type cell struct {
	action  lifecycle.Action
	options lifecycle.Options
	from    lifecycle.NodeState
	phase   lifecycle.PhaseSpec
	// bestEffort is set for a phase that never parks.
	bestEffort bool
	at         situation
}

// cells enumerates the matrix: all plans, the options that change a plan, all phases, all
// situations. The states in which the action may start take turns.
func cells() (all []cell) {
	for _, p := range lifecycle.Operations() {
		options := []lifecycle.Options{{}, {CordonOnly: true}, {Drain: true}, {Force: true}}
		if p.Action == lifecycle.ActionRecover { // the last rung parks
			options = []lifecycle.Options{{Recovery: recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}}}}
		}
		for _, o := range options {
			if o.CordonOnly && p.Action != lifecycle.ActionDrain || (o.Drain || o.Force) && p.Action != lifecycle.ActionRetire {
				continue
			}
			plan, _ := lifecycle.PlanOf(p.Action, o)
			last := len(plan.Phases) - 1
			for i, phase := range plan.Phases {
				for _, at := range situationsOf(plan, phase, i == last) {
					all = append(all, cell{p.Action, o, p.From[len(all)%len(p.From)], phase, phase.BestEffort, at})
				}
			}
		}
	}
	return all
}

func situationsOf(p lifecycle.Plan, phase lifecycle.PhaseSpec, last bool) []situation {
	if last {
		return []situation{atRecording}
	}
	s := []situation{atRunning, atRecordingCancel}
	if !phase.BestEffort {
		s = append(s, atParked)
	}
	// Only a person corrects a machine. The retry of a phase that waits for an event takes no time.
	if !phase.BestEffort && phase.Name != lifecycle.PhaseSKU && eventOf(phase.Name) == "" {
		s = append(s, atRetrying)
	}
	if phase.Name == lifecycle.PhaseDrain {
		s = append(s, atBlocked)
	}
	if p.Undo != nil {
		s = append(s, atUndoing, atUndoParked, atUndoRetrying)
	}
	return s
}

func (c cell) String() string {
	name := string(c.action)
	if c.options.CordonOnly {
		name += " --cordon-only"
	}
	if c.options.Drain {
		name += " --drain"
	}
	if c.options.Force {
		name += " --force"
	}
	return name + "/" + c.phase.Name + "/" + string(c.at)
}

// legal states the rules: which decisions an operation takes in a cell.
func (c cell) legal(d lifecycle.Decision) bool {
	switch c.at {
	case atRecording, atRecordingCancel:
		return false
	case atUndoing:
		return d == lifecycle.DecisionSkip
	case atUndoParked, atUndoRetrying:
		return d == lifecycle.DecisionSkip || d == lifecycle.DecisionRetry
	}
	phase := c.phase.Name
	switch d {
	case lifecycle.DecisionCancel:
		return true
	case lifecycle.DecisionRetry:
		return c.at != atRunning && !c.needsBundle()
	case lifecycle.DecisionExtend:
		return c.at == atBlocked
	case lifecycle.DecisionForce:
		return slices.Contains([]string{"drain", "probe", "sku", "teardown", "verify-reboot"}, phase)
	case lifecycle.DecisionSkip:
		return slices.Contains([]string{"cordon", "drain", "idle", "uncordon", "reboot", "wait-reboot", "verify-reboot", "restore-cordon"}, phase) ||
			phase == "probe" && c.action == lifecycle.ActionReactivate
	}
	return false
}

// needsBundle reports whether only a new bundle helps: an enrollment does not issue one.
func (c cell) needsBundle() bool {
	return c.action == lifecycle.ActionEnroll && slices.Contains([]string{"bundle", "claim"}, c.phase.Name)
}

// offersBundle reports whether a park lists the command for a new bundle.
func (c cell) offersBundle() bool {
	return c.needsBundle() || c.action == lifecycle.ActionEnroll && c.phase.Name == lifecycle.PhasePoll
}

// allLegal lists the legal decisions.
func (c cell) allLegal() (out []lifecycle.Decision) {
	for _, d := range lifecycle.Decisions() {
		if c.legal(d) {
			out = append(out, d)
		}
	}
	return out
}

// canceled reports whether the operation ends as canceled after decision d.
func (c cell) canceled(d lifecycle.Decision) bool {
	return d == lifecycle.DecisionCancel && c.legal(d) ||
		slices.Contains([]situation{atUndoing, atUndoParked, atUndoRetrying, atRecordingCancel}, c.at)
}

// endState states where the node belongs after the operation.
func (c cell) endState(canceled bool) lifecycle.NodeState {
	after := map[lifecycle.Action]lifecycle.NodeState{
		lifecycle.ActionEnroll: "active", lifecycle.ActionProvision: "active", lifecycle.ActionQuarantine: "quarantined",
		lifecycle.ActionRelease: "active", lifecycle.ActionDrain: "drained", lifecycle.ActionUncordon: c.from,
		lifecycle.ActionRetire: "retired", lifecycle.ActionReactivate: "active", lifecycle.ActionRemove: "removed",
		lifecycle.ActionReissueEnrollment: c.from, lifecycle.ActionUpgradeAgent: c.from, lifecycle.ActionTerminate: "registered",
		lifecycle.ActionRecover: "active",
	}
	if canceled || c.options.CordonOnly {
		return c.from
	}
	return after[c.action]
}

// TestMatrix: in every phase and situation of every action, each decision either takes
// effect or is rejected with the list of the decisions that are possible, and changes
// nothing. Afterwards the offered options end the operation, with the node in the right
// state.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			for _, d := range lifecycle.Decisions() {
				t.Run(string(d), func(t *testing.T) {
					p := enter(t, c)
					p.then(func() { p.requireDecided(d) })
					p.finish()
					st := p.requireEnd(c.canceled(d))
					require.Equal(t, c.legal(d), p.resolved[p.decided] == nil)
					if c.legal(d) {
						p.requireEffect(d, st.Operation.Phases)
					}
				})
			}
		})
	}
}

// TestMatrixCancelInWebUI: a cancel of the run is a cancel of the operation while its
// phases run, and changes nothing later.
func TestMatrixCancelInWebUI(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := enter(t, c)
			p.then(p.env.CancelWorkflow)
			p.finish()
			p.requireEnd(c.canceled(lifecycle.DecisionCancel))
		})
	}
}

// TestMatrixNothingRecovers: if the node and the provider never respond again, the options
// that the operation offers still end it.
func TestMatrixNothingRecovers(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		if !slices.Contains([]situation{atParked, atBlocked, atRetrying, atUndoParked, atUndoRetrying}, c.at) {
			continue
		}
		for _, first := range c.allLegal() {
			t.Run(c.String()+"/"+string(first), func(t *testing.T) {
				t.Parallel()
				p := enter(t, c)
				p.then(func() {
					p.world.breakAll()
					p.decide(first, "because")
				})
				for range 4 {
					p.later(26*time.Hour, p.endIt)
				}
				st := p.run()
				require.Contains(t, []lifecycle.OperationState{lifecycle.OperationCompleted, lifecycle.OperationCanceled}, st.Operation.Status)
				p.requireRecorded(st.Operation.Status == lifecycle.OperationCanceled)
			})
		}
	}
}

// TestMatrixHeals: an operation that parked because a party did not respond continues
// and ends without a decision when the party responds again.
func TestMatrixHeals(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		if c.at != atRetrying && c.at != atUndoRetrying && (c.at != atParked || eventOf(c.phase.Name) == "") {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := enter(t, c)
			p.then(func() {
				p.world.repairAll()
				p.sendEvents()
			})
			p.requireEnd(c.at == atUndoRetrying)
			if c.at != atUndoRetrying {
				require.Empty(t, p.resolved)
			}
		})
	}
}

// TestMatrixTwoDecisions: of two decisions at the same time each one is answered, what
// was accepted is recorded, and the operation ends.
func TestMatrixTwoDecisions(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		if c.at == atRecording || c.at == atRecordingCancel {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			for _, first := range c.allLegal() {
				for _, second := range lifecycle.Decisions() {
					t.Run(string(first)+" and "+string(second), func(t *testing.T) {
						p := enter(t, c)
						p.then(func() {
							p.world.repairAll()
							p.decide(first, "because")
							p.decide(second, "because")
						})
						p.finish()
						st := p.run()
						if second == lifecycle.DecisionCancel && p.resolved[0] != nil { // the cancel replaced it
							require.NoError(t, p.resolved[1])
							require.Equal(t, schema.KindDecisionOutdated, kindOf(p.resolved[0]))
							require.Equal(t, second, p.world.decisions[len(p.world.decisions)-1])
							require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
							return
						}
						p.requireRecorded(st.Operation.Status == lifecycle.OperationCanceled)
						require.NoError(t, p.resolved[0])
					})
				}
			}
		})
	}
}
