package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
)

// undoSpec is the phase of an action's compensation.
func undoSpec() schema.PhaseSpec {
	return schema.PhaseSpec{
		Name: "undo", Title: "Undo what was done", Budget: 5 * time.Minute,
		Owner: schema.AttentionCompensation, Cause: "the node's agent is down, cut off or very slow",
	}
}

// stuck says why the phase does not go on and what to type.
func (op *operation) stuck(ctx workflow.Context, spec schema.PhaseSpec, cause error, extra []schema.Decision) schema.Stuck {
	e := failureOf(cause)
	s := schema.Stuck{
		Phase: spec.Name, Attention: spec.Owner, Reason: string(e.Kind), Message: e.Message,
		Since: workflow.Now(ctx).UTC(), Cause: spec.Cause, Next: op.next(spec, e, extra),
	}
	if e.Reason != "" {
		s.Reason = e.Reason
	}
	switch {
	case e.Reason == "timeout":
		s.Reason, s.Message = timedOut(spec)
	case e.Reason == schema.ReasonTaskLost:
		s.Attention = schema.AttentionOperator
		s.Cause = "the node lost its power or its network, or its agent ended, while it held the task; " +
			"look what it did before it is run again"
	case e.Reason == schema.ReasonTaskCancelled:
		s.Attention, s.Cause = schema.AttentionOperator, "an operator cancelled the node's task"
	case e.Kind == schema.KindServiceUnavailable:
		// Ours is away, not the node's or the provider's.
		s.Attention, s.Cause = schema.AttentionOperator, "a service of the control plane is away"
	}
	return s
}

// timedOut names a phase's silence by who kept silent.
func timedOut(spec schema.PhaseSpec) (reason, message string) {
	switch spec.Owner {
	case schema.AttentionAgent, schema.AttentionCompensation:
		return string(schema.KindAgentSilent), fmt.Sprintf("the node's agent did not answer within %s", spec.Budget)
	case schema.AttentionProvider:
		return "provider_silent", fmt.Sprintf("the provider did not answer within %s", spec.Budget)
	}
	return "timeout", fmt.Sprintf("not done within %s", spec.Budget)
}

// next is the command that most likely helps.
func (op *operation) next(spec schema.PhaseSpec, e *schema.Error, extra []schema.Decision) string {
	if e.Next != "" {
		return e.Next
	}
	if e.Reason == schema.ReasonTaskLost {
		return "gpuaas task resume " + schema.TaskID(op.in.OperationID, op.asked) + " --reason TEXT"
	}
	verb := schema.DecisionRetry
	switch {
	case e.Reason == reasonDrainBlocked && slices.Contains(extra, schema.DecisionForce):
		verb = schema.DecisionForce
	case !op.holds() && e.Reason == "timeout" && spec.Name != schema.PhasePoll:
		// Its token was never handed out, or is not good any more.
		verb = schema.DecisionCancel
	}
	return schema.OpCommand(string(verb), op.in.Action, op.name()) + " --reason TEXT"
}

// name is how an operator names the node.
func (op *operation) name() string {
	if op.status.Node.Host != "" {
		return op.status.Node.Host
	}
	return op.in.NodeID
}
