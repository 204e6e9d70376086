package workflows

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
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
	problem, isProblem := machines.ProblemOf(e.Reason)
	if e.Next != "" {
		s.Cause = "the failure names the fix: " + e.Next
	}
	switch {
	case locked(e):
		op.underLock(&s, e)
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
			"inspect the node before you run the task again; if its agent was purged or its disk replaced, " +
			"it cannot take the task: cancel the operation, skip its undo when that parks, then run: " + trust.IdentityLock{}.Next(op.name())
		s.Options = append([]lifecycle.Option{lifecycle.ResumeTask(lifecycle.TaskID(op.in.OperationID, op.currentStep))}, s.Options...)
	case e.Reason == lifecycle.ReasonProviderUnknown:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "the workers that run have no adapter for provider "+
			text.Quote(op.claim.Provider, maxReason)+"; start a gpuaas-worker that has it, and the operation continues"
	case e.Reason == lifecycle.ReasonGPUsInUse:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "processes that no workload driver stops use the GPUs; end them on the node, then retry"
	case e.Reason == lifecycle.ReasonWorkloadsUnknown:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "no workload driver is configured on the node (GPUAAS_WORKLOAD_DRIVER), or the driver cannot list the workloads "+
			"(Docker, systemd or the Kubernetes API server does not respond), or nvidia-smi fails there; correct that, then retry"
	case e.Reason == lifecycle.ReasonLastServer:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "the cluster would lose its last control plane; add a second server, then retry, or cancel and terminate the node"
	case e.Reason == lifecycle.ReasonNotCured:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "the fault outlasted the repair, so the hardware may be broken; repair the node by hand, then retry"
	case e.Kind == schema.KindNodeInUse && spec.Name == lifecycle.PhaseIdle:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "workloads started after the last heartbeat; cancel, then run: gpuaas node retire "+op.name()+" --drain"
	case e.Reason == lifecycle.ReasonTaskCanceled:
		s.WaitingOn, s.Cause = lifecycle.AttentionOperator, "the node's task was canceled, by gpuaas task cancel or by a reset of this run"
	case isProblem:
		if spec.WaitingOn == lifecycle.AttentionProvider {
			s.WaitingOn = waitingOn(problem.Acts)
		}
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
	case e.Next == "":
		op.reported(&s, e)
	}
	op.complete(&s, e.Kind)
	return s
}

// complete adds to a park what follows from its reason.
func (op park) complete(s *lifecycle.Stuck, kind schema.Kind) {
	if s.Reason != lifecycle.ReasonDrainBlocked && s.Reason != lifecycle.ReasonGPUsInUse { // no workloads that need more time are known
		s.Options = slices.DeleteFunc(s.Options, func(o lifecycle.Option) bool { return o.Decision == lifecycle.DecisionExtend })
	}
	if op.machineSeen != "" && (s.Reason == lifecycle.ReasonMachineSilent || s.Reason == machines.ReasonFailed) {
		s.Cause = op.machineSeen
	}
	if retried(kind, s.Reason) {
		s.Retrying = &lifecycle.Retrying{}
	}
	if s.Next == "" && len(s.Options) > 0 {
		s.Next = s.Options[0].Command
	}
}

// waitingOn returns who must act on a problem with a machine.
func waitingOn(p machines.Party) lifecycle.Attention {
	if p == machines.PartyProvider {
		return lifecycle.AttentionProvider
	}
	return lifecycle.AttentionOperator
}

// locked reports whether a phase failed because the identity of its node is locked. A lost task
// of such a node has the next step of the lock.
func locked(e *schema.Error) bool {
	return e.Reason == schema.ReasonNodeLocked || e.Reason == lifecycle.ReasonTaskLost && e.Next != ""
}

// underLock describes the park of an operation whose node's identity is locked. An operation
// that conflicts with a reissue must be canceled before it.
func (op park) underLock(s *lifecycle.Stuck, e *schema.Error) {
	s.WaitingOn, s.Next = lifecycle.AttentionOperator, e.Next
	s.Cause = "the node receives no tasks, because its identity is locked; after an unlock, the operation continues"
	reissue, _ := lifecycle.PlanOf(lifecycle.ActionReissueEnrollment, lifecycle.Options{})
	renew := trust.IdentityLock{}.Next(op.name())
	switch conflicts := reissue.ConflictsWith(op.in.Action); {
	case conflicts && e.Next == renew:
		s.Next = s.Command(lifecycle.DecisionCancel, op.in.Action, op.name(), op.in.OperationID)
		s.Cause = "the node receives no tasks, because its identity is locked; cancel the operation, which does not wait for the node, then run: " + renew
	case conflicts:
		s.Cause += "; for a new identity, cancel the operation, which does not wait for the node, then run: " + renew
	case e.Next == renew:
		s.Cause = "the node receives no tasks, because its identity is locked; after the reissue, retry if the operation does not continue"
	}
	if e.Reason == lifecycle.ReasonTaskLost {
		s.Options = append([]lifecycle.Option{lifecycle.ResumeTask(lifecycle.TaskID(op.in.OperationID, op.currentStep))}, s.Options...)
	}
}

// reported describes a failure that the agent reported. The agent responds, so a person must act.
// An undo still waits on the compensation.
func (op park) reported(s *lifecycle.Stuck, e *schema.Error) {
	show := "; its report: gpuaas task show " + lifecycle.TaskID(op.in.OperationID, op.currentStep)
	switch {
	case e.Reason == lifecycle.ReasonSeqReplayed:
		s.Cause = "the agent has run a task with a higher sequence, as after a restore of the database; its polls report the sequence that it requires"
	case e.Reason == lifecycle.ReasonUpgradeRolledBack:
		s.Cause = "the release does not work on the node, and the agent before the release runs again"
	case e.Reason == lifecycle.ReasonReleaseRejected:
		s.Cause = "the agent did not accept the release, and nothing was changed"
	case e.Reason == lifecycle.ReasonProbeFailed:
		s.Cause = "the agent probed the node, and a check failed"
	case e.Reason == lifecycle.ReasonNotCured:
		s.Cause = "the agent tested the node after the repair, and a test failed; the message names it"
	case e.Kind == schema.KindTaskRefused:
		s.Cause = "the agent rejected the task and did not run it" + show + ", and the agent's log on the node (journalctl -u gpuaas-node-agent)"
	case (e.Kind == schema.KindTaskFailed || e.Kind == schema.KindUnfit) && e.Reason == "":
		s.Cause = "the agent ran the task, and it failed" + show
	default:
		return
	}
	if s.WaitingOn == lifecycle.AttentionAgent {
		s.WaitingOn = lifecycle.AttentionOperator
	}
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
	party := spec.WaitingOn
	if party == lifecycle.AttentionCompensation { // an undo waits for the party of its step
		party = lifecycle.AttentionAgent
		if spec.Name == lifecycle.PhaseUndoAdopt || spec.Name == lifecycle.PhaseUndoTeardown {
			party = lifecycle.AttentionProvider
		}
	}
	switch party {
	case lifecycle.AttentionAgent:
		return string(schema.KindAgentSilent), "the node's agent did not respond within " + lifecycle.Span(spec.Budget)
	case lifecycle.AttentionProvider:
		return lifecycle.ReasonProviderSilent, "the provider did not respond within " + lifecycle.Span(spec.Budget)
	}
	return lifecycle.ReasonTimeout, "not done within " + lifecycle.Span(spec.Budget)
}
