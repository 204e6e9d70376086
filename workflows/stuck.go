package workflows

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
)

// stuck returns why the current phase is parked, who must act, and the possible
// decisions. since is the time of the park.
func (op park) stuck(cause error, since time.Time) lifecycle.Stuck {
	spec, e := op.spec(), failureOf(cause)
	if spec.Name == lifecycle.PhaseSKU && e.Reason != lifecycle.ReasonSKUMismatch { // a retry collects the facts again
		spec.WaitingOn, spec.Cause = lifecycle.AttentionAgent, "the agent did not report the machine's facts"
	}
	s := lifecycle.Stuck{
		Phase: spec.Name, WaitingOn: spec.WaitingOn, Reason: string(e.Kind), Message: e.Message,
		Since: since, Cause: spec.Cause,
		Options: op.plan.OptionsIn(spec, op.name(), op.in.OperationID, since),
	}
	if e.Reason != "" {
		s.Reason = e.Reason
	}
	if e.Next != "" {
		s.Cause = "the failure names the fix: " + e.Next
	}
	switch {
	case e.Reason == lifecycle.ReasonTimeout:
		s.Reason, s.Message = timedOut(spec)
		if spec.Name == lifecycle.PhasePoll && !op.enrolled.TokenClaimed {
			s.Cause = "a newer bundle replaced the token that the agent had claimed, and no agent has claimed the new one"
			bundleFirst(s.Options)
		}
	case e.Reason == lifecycle.ReasonTaskLost && op.returns >= maxReturns:
		s.WaitingOn = lifecycle.AttentionOperator
		s.Cause = fmt.Sprintf("the node lost the task %d times; repair the node before you run the task again", op.returns+1)
	case e.Reason == lifecycle.ReasonTaskLost && spec.Name == lifecycle.PhaseUpgrade:
		s.Message = "the agent received release " + op.in.Options.AgentVersion + " and has not reported since; the release may be on trial"
		s.WaitingOn = lifecycle.AttentionAgent
		s.Cause = "the release makes no successful poll, or the node lost power or network; the agent before the release runs again within " +
			lifecycle.Span(task.TrialStarts*task.TrialTime) + ", and the operation then continues with its report"
		s.Options = append([]lifecycle.Option{lifecycle.ResumeTask(lifecycle.TaskID(op.in.OperationID, op.currentStep))}, s.Options...)
	case e.Reason == lifecycle.ReasonTaskLost:
		s.WaitingOn = lifecycle.AttentionOperator
		s.Cause = "the node lost power or network, or its agent ended, while it ran the task; " +
			"inspect the node before you run the task again"
		s.Options = append([]lifecycle.Option{lifecycle.ResumeTask(lifecycle.TaskID(op.in.OperationID, op.currentStep))}, s.Options...)
	case e.Reason == lifecycle.ReasonProviderUnknown:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "the workers that run have no adapter for provider "+
			text.Quote(op.claim.Provider, maxReason)+"; start a gpuaas-worker that has it, and the operation continues"
	case e.Reason == lifecycle.ReasonGPUsInUse:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "processes that no workload driver stops use the GPUs; end them on the node, then retry"
	case e.Reason == lifecycle.ReasonWorkloadsUnknown:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "no workload driver is configured on the node (GPUAAS_WORKLOAD_DRIVER), or nvidia-smi fails there; "+
			"correct that, restart the agent, then retry"
	case e.Kind == schema.KindNodeInUse && spec.Name == lifecycle.PhaseIdle:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "workloads started after the last heartbeat; cancel, then run: gpuaas node retire "+op.name()+" --drain"
	case e.Reason == lifecycle.ReasonTaskCanceled:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "the node's task was canceled, by gpuaas task cancel or by a reset of this run"
	case e.Kind == schema.KindServiceUnavailable:
		// The control plane's own service failed, not the node or the provider.
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "a service of the control plane is unavailable"
	case e.Kind == schema.KindAgentSilent && spec.Destructive:
		s.WaitingOn, s.Cause = lifecycle.AttentionAgent, "the node lost power or network, or its agent ended"
	case e.Kind == schema.KindInternal:
		s.WaitingOn = lifecycle.AttentionOperator
		if e.Next == "" {
			s.Cause = "an unexpected failure in the control plane; the worker's log has its cause"
		}
	}
	if s.Reason != lifecycle.ReasonDrainBlocked && s.Reason != lifecycle.ReasonGPUsInUse { // no workloads that need more time are known
		s.Options = slices.DeleteFunc(s.Options, func(o lifecycle.Option) bool { return o.Decision == lifecycle.DecisionExtend })
	}
	if retried(e.Kind, s.Reason) {
		s.Retrying = &lifecycle.Retrying{}
	}
	if s.Next == "" && len(s.Options) > 0 {
		s.Next = s.Options[0].Command
	}
	return s
}

// bundleFirst recommends a new bundle.
func bundleFirst(options []lifecycle.Option) {
	slices.SortStableFunc(options, func(a, b lifecycle.Option) int {
		switch {
		case a.Decision == lifecycle.DecisionBootstrap:
			return -1
		case b.Decision == lifecycle.DecisionBootstrap:
			return 1
		}
		return 0
	})
}

// timedOut returns the reason and message of a phase that exceeded its budget. They
// name the party that did not respond.
func timedOut(spec lifecycle.PhaseSpec) (reason, message string) {
	switch spec.WaitingOn {
	case lifecycle.AttentionAgent, lifecycle.AttentionCompensation:
		return string(schema.KindAgentSilent), "the node's agent did not respond within " + lifecycle.Span(spec.Budget)
	case lifecycle.AttentionProvider:
		return lifecycle.ReasonProviderSilent, "the provider did not respond within " + lifecycle.Span(spec.Budget)
	}
	return lifecycle.ReasonTimeout, "not done within " + lifecycle.Span(spec.Budget)
}
