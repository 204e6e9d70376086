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
		Since: workflow.Now(ctx).UTC(), Cause: spec.Cause, Next: op.next(e, extra),
	}
	if e.Reason != "" {
		s.Reason = e.Reason
	}
	switch {
	case e.Reason == "timeout":
		s.Reason, s.Message = timedOut(spec)
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
func (op *operation) next(e *schema.Error, extra []schema.Decision) string {
	if e.Next != "" {
		return e.Next
	}
	verb := schema.DecisionRetry
	if e.Reason == reasonDrainBlocked && slices.Contains(extra, schema.DecisionForce) {
		verb = schema.DecisionForce
	}
	return fmt.Sprintf("gpuaas op %s %s --reason TEXT", verb, op.name())
}

// name is how an operator names the node.
func (op *operation) name() string {
	if op.status.Node.Host != "" {
		return op.status.Node.Host
	}
	return op.in.NodeID
}
