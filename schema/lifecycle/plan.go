package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Action is a change of a node that an operator can request, or a transition that
// follows from its heartbeats.
type Action string

// Plan defines one action: the states from which it may start, its end state, and its
// phases in order. Workflows, routes, the dry run, documents and tests derive from the
// plans. The claim computes the plan of a run once.
type Plan struct {
	Action Action `json:"action"`
	// Workflow is the type name of the action's workflow. It is empty for a
	// transition without a workflow; such a plan has no phases.
	Workflow string `json:"workflow,omitempty"`
	// Does describes the action for operators.
	Does string `json:"does"`
	// From lists the states the action may start in. It is empty for register,
	// which creates the node.
	From []NodeState `json:"from,omitempty"`
	// Enter is the state that the claim enters. Empty keeps the state.
	Enter NodeState `json:"enter,omitempty"`
	// Through lists further states of the node while the action runs.
	Through []NodeState `json:"through,omitempty"`
	// To is the state after success. Empty means the state at the start.
	To NodeState `json:"to,omitempty"`
	// Holds is true when the action runs under the node's workflow ID, and so
	// excludes every other action that holds the node.
	Holds bool `json:"holds,omitempty"`
	// Phases are the action's phases in order. The last one writes the record.
	Phases []PhaseSpec `json:"phases,omitempty"`
	// Undo is the compensation that a cancel runs as a phase of its own. nil
	// means that nothing needs one.
	Undo *PhaseSpec `json:"undo,omitempty"`
	// Cancel describes the effect of a cancel.
	Cancel Option `json:"cancel,omitzero"`
	// Outcome describes the success of the action in a few words.
	Outcome string `json:"outcome,omitempty"`
	// Instance is the instance's state after success. Empty keeps it.
	Instance InstanceState `json:"instance,omitempty"`
	// DenyIdentity voids the node's certificates and tokens at the end.
	DenyIdentity bool `json:"deny_identity,omitempty"`
	// CancelVoidsTokens voids the node's unused enrollment tokens on a cancel.
	CancelVoidsTokens bool `json:"cancel_voids_tokens,omitempty"`
}

// PhaseSpec is one phase of a plan.
type PhaseSpec struct {
	// Name is the phase's stable name. The workflows package has a step body of
	// the same name, except for a plan's last phase.
	Name string `json:"name"`
	// Title is the phase's name for operators.
	Title string `json:"title"`
	// Budget is the time limit of the phase, all attempts included. When it ends,
	// the operation parks.
	Budget time.Duration `json:"budget"`
	// WaitingOn is who must act if the phase does not end.
	WaitingOn Attention `json:"waiting_on"`
	// Cause is the likely cause when the budget ends.
	Cause string `json:"cause"`
	// Hint describes the action that an operator must take for the phase to end,
	// with NODE for the node's name. Empty when no action is needed.
	Hint string `json:"hint,omitempty"`
	// BestEffort phases do not park: when one fails, the operation continues
	// without it.
	BestEffort bool `json:"best_effort,omitempty"`
	// Destructive phases end work. While the operation is parked, such a phase is not
	// started again without a decision, only asked about its task.
	Destructive bool `json:"destructive,omitempty"`
	// Rung is the rung of a repair that the phase belongs to. Its phases are skipped once the node is
	// verified as healthy, or once one of them failed or was skipped.
	Rung recovery.Rung `json:"rung,omitempty"`
	// Climbs is set if another rung follows: then a failure of the phase ends its rung, and the
	// operation continues with the next one instead of parking.
	Climbs bool `json:"climbs,omitempty"`
	// OnCreate phases exist only if the provider creates the machine; see Plan.On.
	OnCreate bool `json:"on_create,omitempty"`
	// Choices are the decisions that the phase allows, apart from cancel.
	Choices []Option `json:"choices,omitempty"`
}

// On returns the plan on a node of the provider. Without a machine of its own, an operation has
// none of the phases of one. A provisioning that creates one also issues the node's token, which
// a cancel voids. The limits of the provider replace the budgets of the phases that wait for it.
func (p Plan) On(provider machine.Info) Plan {
	p.Phases = slices.Clone(p.Phases)
	if !provider.Creates {
		p.Phases = slices.DeleteFunc(p.Phases, func(s PhaseSpec) bool { return s.OnCreate })
		return p
	}
	p.CancelVoidsTokens = p.CancelVoidsTokens || p.Action == ActionProvision
	for i := range p.Phases {
		p.Phases[i].limit(provider.Limits)
	}
	if p.Undo != nil {
		undo := *p.Undo
		undo.limit(provider.Limits)
		p.Undo = &undo
	}
	return p
}

// limit sets the budget of a phase that waits for a provider with the limits.
func (s *PhaseSpec) limit(l machine.Limits) {
	of := map[string]time.Duration{PhaseMachine: l.Create, PhaseEnroll: l.Boot, PhaseUndoAdopt: l.Delete,
		PhaseTeardown: l.Delete, PhaseUndoTeardown: l.Delete}
	s.Budget = cmp.Or(of[s.Name], s.Budget)
}

// plans lists every action. Its order is that of the documents.
//
//nolint:gochecknoglobals // read-only table
var plans = []func(Options) Plan{
	register, enroll, provision, heartbeatLost, heartbeatBack, quarantine, release,
	drain, uncordon, retire, reactivate, terminate, remove, upgradeAgent, reissueEnrollment, recoverNode,
}

// All returns the plan of every action with default options, transitions
// without a workflow included.
func All() []Plan {
	all := make([]Plan, len(plans))
	for i, plan := range plans {
		all[i] = plan(Options{})
	}
	return all
}

// Operations returns the plans that run as workflows.
func Operations() []Plan {
	return slices.DeleteFunc(All(), func(p Plan) bool { return p.Workflow == "" })
}

// PlanOf returns the plan of an action with the given options. ok is false for
// an unknown action.
func PlanOf(a Action, o Options) (p Plan, ok bool) {
	for _, plan := range plans {
		if p = plan(o); p.Action == a {
			return p, true
		}
	}
	return Plan{}, false
}

// PhasesOf returns the phases of an action with the given options, nil for an
// unknown action.
func PhasesOf(a Action, o Options) []PhaseSpec {
	p, _ := PlanOf(a, o)
	return p.Phases
}

// PlanOfWorkflow returns the plan, with default options, that runs as the given
// workflow type. ok is false for an unknown type.
func PlanOfWorkflow(workflowType string) (p Plan, ok bool) {
	for _, p := range Operations() {
		if p.Workflow == workflowType {
			return p, true
		}
	}
	return Plan{}, false
}

// CheckStart returns the plan of action a when it may start in state s. Otherwise
// it returns a KindInvalidRequest error that names the state, the states the
// action starts in, and the action that leads there if there is one, unless the node is
// where action a would lead it.
func CheckStart(a Action, s NodeState) (Plan, error) {
	p, ok := PlanOf(a, Options{})
	if !ok {
		return Plan{}, schema.NewError(schema.KindInvalidRequest, "unknown action %q", a)
	}
	if slices.Contains(p.From, s) {
		return p, nil
	}
	return Plan{}, p.refusal(s, ActionEnroll)
}

// ConflictsWith reports whether an operation that runs on the node keeps the plan from
// starting. A reissue runs beside every operation except a drain, a retire, a terminate and a
// remove, whose tasks its claim would void, or which end the identity.
func (p Plan) ConflictsWith(running Action) bool {
	if p.Action == ActionReissueEnrollment {
		return slices.Contains([]Action{ActionDrain, ActionRetire, ActionTerminate, ActionRemove}, running)
	}
	return p.Holds && running != ActionReissueEnrollment
}

// refusal is the error of a plan that cannot start in state s. first is the action with which a
// node of its provider enters service.
func (p Plan) refusal(s NodeState, first Action) error {
	action := string(p.Action)
	if p.Action == ActionReissueEnrollment {
		action = "reissue the enrollment of"
	}
	if s == NodeRemoved {
		return schema.NewError(schema.KindInvalidRequest, "cannot %s a removed node: removal is final; register the host as a new node", action).WithReason("invalid_state")
	}
	msg := fmt.Sprintf("cannot %s a node that is %s: it must be %s", action, s, text.Or(p.From))
	if via := leadsTo(s, p.From); via != "" && p.To != s {
		if via == ActionEnroll {
			via = first
		}
		msg += fmt.Sprintf("; run: gpuaas node %s NODE", via)
	}
	return schema.NewError(schema.KindInvalidRequest, "%s", msg).WithReason("invalid_state")
}

// leadsTo returns the action that changes a node's state from s to one of the wanted
// states, or "" if no single action does, or only one that is final or a repair.
func leadsTo(s NodeState, want []NodeState) Action {
	for _, p := range All() {
		if p.Holds && !p.Final() && p.Action != ActionRecover && p.To != s && slices.Contains(p.From, s) && slices.Contains(want, p.To) {
			return p.Action
		}
	}
	return ""
}

// ActionsIn returns the actions that an operator can start in state s.
func ActionsIn(s NodeState) (actions []Action) {
	for _, p := range Operations() {
		if slices.Contains(p.From, s) {
			actions = append(actions, p.Action)
		}
	}
	return actions
}

// Final reports whether the action ends the node's machine, which no other action reverses.
func (p Plan) Final() bool { return p.Instance == InstanceTerminated }

// Begin fills in the status of an operation that starts now with its first phase.
func (p Plan) Begin(o *Operation, now time.Time) {
	o.Phases = p.Statuses()
	o.Status, o.StartedAt = OperationRunning, &now
	if len(p.Phases) == 0 {
		return
	}
	deadline := now.Add(p.Phases[0].Budget)
	o.Phases[0].State, o.Phases[0].Attempt, o.Phases[0].StartedAt = PhaseRunning, 1, &now
	o.DeadlineAt = &deadline
}

// Statuses returns the status rows of the plan's phases, all pending.
func (p Plan) Statuses() []Phase {
	out := make([]Phase, len(p.Phases))
	for i, spec := range p.Phases {
		out[i] = spec.Status()
	}
	return out
}

// Status returns the phase's status row before it starts.
func (s PhaseSpec) Status() Phase {
	return Phase{Name: s.Name, Title: s.Title, State: PhasePending}
}

// Allows reports whether the phase lists the decision.
func (s PhaseSpec) Allows(d Decision) bool {
	return slices.ContainsFunc(s.Choices, func(c Option) bool { return c.Decision == d })
}

// IsUndo reports whether the phase is the undo of a plan.
func IsUndo(phase string) bool { return slices.Contains(Undos(), phase) }

// Undos returns the phases that undo an operation.
func Undos() []string {
	return []string{PhaseUndoCordon, PhaseUndoAdopt, PhaseUndoTeardown, PhaseUndoRecover}
}

// AfterUndo reports whether a phase may no longer run, because the recorded one is the undo: a
// run that was reset to before the undo would run it. An empty phase is not known.
func AfterUndo(phase, recorded string) bool {
	return phase != "" && !IsUndo(phase) && IsUndo(recorded)
}

// ChoicesIn returns the possible decisions in a phase of the plan, the least harmful
// first. The undo phase cannot be canceled.
func (p Plan) ChoicesIn(s PhaseSpec) []Option {
	out := slices.Clone(s.Choices)
	if (p.Undo == nil || p.Undo.Name != s.Name) && !s.Allows(DecisionCancel) {
		out = append(out, p.Cancel)
	}
	slices.SortStableFunc(out, func(a, b Option) int { return a.Harm.rank() - b.Harm.rank() })
	return out
}

// OptionsIn returns the choices in a phase with the command of each, for an operation that
// is parked in the phase since a time.
func (p Plan) OptionsIn(s PhaseSpec, node, operationID string, since time.Time) []Option {
	park := Stuck{Phase: s.Name, Since: since}
	var out []Option
	for _, c := range p.ChoicesIn(s) {
		o := Option{Decision: c.Decision, Does: c.Does, Harm: c.Harm, Command: strings.ReplaceAll(c.Command, "NODE", node)}
		if c.Command == "" {
			o.Command = park.Command(c.Decision, p.Action, node, operationID)
		}
		out = append(out, o)
	}
	return out
}

// Span formats a duration for operators in its two largest units: 45s, 12m, 3h20m, 5d4h.
func Span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	for _, u := range []struct {
		size, next time.Duration
		pair       string
	}{{24 * time.Hour, time.Hour, "dh"}, {time.Hour, time.Minute, "hm"}, {time.Minute, time.Second, "ms"}} {
		switch rest := d % u.size / u.next; {
		case d >= u.size && rest == 0:
			return fmt.Sprintf("%d%c", d/u.size, u.pair[0])
		case d >= u.size:
			return fmt.Sprintf("%d%c%d%c", d/u.size, u.pair[0], rest, u.pair[1])
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

const (
	taskBudget   = 5 * time.Minute // one read or idempotent task on the node
	recordBudget = 5 * time.Minute // a write to the database

	causeAgent  = "the node's agent is down, unreachable or very slow"
	causeRecord = "the database or the worker is down"
)

// record is the last phase of every plan.
func record(name, title string) PhaseSpec {
	return PhaseSpec{Name: name, Title: title, Budget: recordBudget, WaitingOn: AttentionOperator, Cause: causeRecord}
}

// retry is the choice to run the phase again, which every phase has.
func retry(does string) Option { return Option{Decision: DecisionRetry, Does: does, Harm: HarmNone} }

// cancels is the choice to cancel the operation.
func cancels(harm Harm, does string) Option {
	return Option{Decision: DecisionCancel, Does: does, Harm: harm}
}
