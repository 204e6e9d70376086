package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// stuck returns why the current phase is parked, who must act, and the possible
// decisions.
func (op *operation) stuck(ctx workflow.Context, cause error) lifecycle.Stuck {
	spec, e := op.spec(), failureOf(cause)
	s := lifecycle.Stuck{
		Phase: spec.Name, WaitingOn: spec.WaitingOn, Reason: string(e.Kind), Message: e.Message,
		Since: now(ctx), Cause: spec.Cause,
		Options: op.plan.OptionsIn(spec, op.name(), op.in.OperationID),
	}
	if e.Reason != "" {
		s.Reason = e.Reason
	}
	if e.Next != "" {
		s.Cause = "the failure names the fix: " + e.Next
	}
	switch {
	case e.Reason == reasonTimeout:
		s.Reason, s.Message = timedOut(spec)
	case e.Reason == task.ReasonLost:
		s.WaitingOn = lifecycle.AttentionOperator
		s.Cause = "the node lost power or network, or its agent ended, while it ran the task; " +
			"inspect the node before you run the task again"
		s.Options = append([]lifecycle.Option{lifecycle.ResumeTask(lifecycle.TaskID(op.in.OperationID, op.currentStep))}, s.Options...)
	case e.Reason == task.ReasonCanceled:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "an operator canceled the node's task"
	case e.Kind == schema.KindServiceUnavailable:
		// The control plane's own service failed, not the node or the provider.
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "a service of the control plane is unavailable"
	}
	if len(s.Options) > 0 {
		s.Next = s.Options[0].Command
	}
	return s
}

// timedOut returns the reason and message of a phase that exceeded its budget. They
// name the party that did not respond.
func timedOut(spec lifecycle.PhaseSpec) (reason, message string) {
	switch spec.WaitingOn {
	case lifecycle.AttentionAgent, lifecycle.AttentionCompensation:
		return string(schema.KindAgentSilent), fmt.Sprintf("the node's agent did not respond within %s", spec.Budget)
	case lifecycle.AttentionProvider:
		return "provider_silent", fmt.Sprintf("the provider did not respond within %s", spec.Budget)
	}
	return reasonTimeout, fmt.Sprintf("not done within %s", spec.Budget)
}
