package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// undoSpec is the phase of an action's compensation.
func undoSpec() lifecycle.PhaseSpec {
	return lifecycle.PhaseSpec{
		Name: "undo", Title: "Undo what was done", Budget: 5 * time.Minute,
		Owner: lifecycle.AttentionCompensation, Cause: "the node's agent is down, cut off or very slow",
	}
}

// stuck says why the phase does not go on and what to type.
func (op *operation) stuck(ctx workflow.Context, spec lifecycle.PhaseSpec, cause error, extra []lifecycle.Decision) lifecycle.Stuck {
	e := failureOf(cause)
	s := lifecycle.Stuck{
		Phase: spec.Name, WaitingOn: spec.Owner, Reason: string(e.Kind), Message: e.Message,
		Since: workflow.Now(ctx).UTC(), Cause: spec.Cause, Next: op.next(spec, e, extra),
	}
	if e.Reason != "" {
		s.Reason = e.Reason
	}
	switch {
	case e.Reason == "timeout":
		s.Reason, s.Message = timedOut(spec)
	case e.Reason == task.ReasonLost:
		s.WaitingOn = lifecycle.AttentionOperator
		s.Cause = "the node lost its power or its network, or its agent ended, while it held the task; " +
			"look what it did before it is run again"
	case e.Reason == task.ReasonCanceled:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "an operator cancelled the node's task"
	case e.Kind == schema.KindServiceUnavailable:
		// Ours is away, not the node's or the provider's.
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "a service of the control plane is away"
	}
	return s
}

// timedOut names a phase's silence by who kept silent.
func timedOut(spec lifecycle.PhaseSpec) (reason, message string) {
	switch spec.Owner {
	case lifecycle.AttentionAgent, lifecycle.AttentionCompensation:
		return string(schema.KindAgentSilent), fmt.Sprintf("the node's agent did not answer within %s", spec.Budget)
	case lifecycle.AttentionProvider:
		return "provider_silent", fmt.Sprintf("the provider did not answer within %s", spec.Budget)
	}
	return "timeout", fmt.Sprintf("not done within %s", spec.Budget)
}

// next is the command that most likely helps.
func (op *operation) next(spec lifecycle.PhaseSpec, e *schema.Error, extra []lifecycle.Decision) string {
	if e.Next != "" {
		return e.Next
	}
	if e.Reason == task.ReasonLost {
		return "gpuaas task resume " + lifecycle.TaskID(op.in.OperationID, op.asked) + " --reason TEXT"
	}
	verb := lifecycle.DecisionRetry
	switch {
	case e.Reason == reasonDrainBlocked && slices.Contains(extra, lifecycle.DecisionForce):
		verb = lifecycle.DecisionForce
	case !op.holds() && e.Reason == "timeout" && spec.Name != lifecycle.PhasePoll:
		// Its token was never handed out, or is not good any more.
		verb = lifecycle.DecisionCancel
	}
	return lifecycle.OpCommand(string(verb), op.in.Action, op.name()) + " --reason TEXT"
}

// name is how an operator names the node.
func (op *operation) name() string {
	if op.status.Node.Host != "" {
		return op.status.Node.Host
	}
	return op.in.NodeID
}
