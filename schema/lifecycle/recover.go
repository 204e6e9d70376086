package lifecycle

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/text"
)

// ActionRecover repairs a node: it climbs the rungs of the request until the node is verified as
// healthy.
const ActionRecover Action = "recover"

// The phases of a recover that have a step.
const (
	PhaseVerifyFault    = "verify-fault"
	PhaseApproveReset   = "approve-reset"
	PhaseResetGPU       = "reset-gpu"
	PhaseVerifyReset    = "verify-reset"
	PhaseApproveReboot  = "approve-reboot"
	PhaseReboot         = "reboot"
	PhaseWaitReboot     = "wait-reboot"
	PhaseVerifyReboot   = "verify-reboot"
	PhaseApproveReplace = "approve-replace"
	PhaseReplace        = "replace"
	PhaseVerifyReplace  = "verify-replace"
	PhaseRestoreCordon  = "restore-cordon"
	PhaseEvidence       = "evidence"
	PhaseUndoRecover    = "undo-recover"
)

// How long a node may take from a reboot to the first heartbeat of the next boot. A node with GPUs
// trains its memory and links, and checks its devices.
const (
	RebootWaitGPU   = health.GPURebootWait
	RebootWaitPlain = health.StandardRebootWait
	// MaxRebootWait is the longest wait that a request may ask for.
	MaxRebootWait = 24 * time.Hour
)

// The limits of a repair in a request.
const (
	maxRepairGPUs  = 64
	maxRepairField = 64
)

// verifyBudget is the time of the longest tests of a node (task.VerifyTime) and a margin, so that
// their result arrives before the phase's budget ends.
const verifyBudget = 45 * time.Minute

func recoverNode(o Options) Plan {
	r := o.Recovery
	var phases []PhaseSpec
	if r.Fault.Checker != "" {
		phases = append(phases, verifyFault())
	}
	phases = append(phases, tryCordon())
	rungs := Rungs(r)
	for i, rung := range rungs {
		if rung.Approvable() && slices.Contains(r.Approve, rung) {
			phases = append(phases, approval(r, rung))
		}
		if i == 0 && rung != recovery.RungQuarantine {
			phases = append(phases, evictWorkloads(o))
		}
		phases = append(phases, rungPhases(rung, r, i < len(rungs)-1)...)
	}
	phases = append(phases, restoreCordon())
	if slices.Contains(rungs, recovery.RungQuarantine) {
		phases = append(phases, keepEvidence())
	}
	undo := undoCordon()
	undo.Name, undo.Title = PhaseUndoRecover, "Switch the machine on and uncordon the node"
	undo.Budget = rebootWait(r) + taskBudget
	return Plan{
		Action: ActionRecover, Workflow: "Recover", Holds: true,
		Does: "Repairs a node: checks the fault again, drains the node, and climbs the rungs of the repair (GPU reset, reboot, replacement) until the node passes its tests. A node that no rung repairs stays quarantined, with the evidence for its vendor.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined}, Enter: NodeQuarantined, To: NodeActive,
		Phases:  append(phases, record("recovered", "Record how the repair ended")),
		Undo:    undo,
		Cancel:  cancels(HarmNone, "Uncordon the node and restore its previous state; what was already restarted stays so"),
		Outcome: "repaired",
	}
}

// Rungs returns the rungs that a repair climbs. Without any in the request, they follow from what the
// fault needs; a repair without a fault reboots the node.
func Rungs(r recovery.Request) []recovery.Rung {
	switch {
	case len(r.Rungs) > 0:
		return r.Rungs
	case r.Fault.Repair == health.RepairResetGPU:
		return []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot, recovery.RungQuarantine}
	case r.Fault.Repair == health.RepairRMA:
		return []recovery.Rung{recovery.RungQuarantine}
	}
	return []recovery.Rung{recovery.RungReboot, recovery.RungQuarantine}
}

// CheckRecovery rejects a repair that the control plane cannot perform, as KindInvalidRequest, reason
// bad_recovery.
func CheckRecovery(r recovery.Request) error {
	bad := func(format string, args ...any) error {
		return schema.NewError(schema.KindInvalidRequest, "recovery: "+format, args...).WithReason("bad_recovery")
	}
	at := -1
	for _, rung := range r.Rungs {
		i := slices.Index(recovery.Rungs(), rung)
		switch {
		case i < 0:
			return bad("unknown rung %s: the rungs are %s", text.Quote(string(rung), maxRepairField), text.Or(recovery.Rungs()))
		case i <= at:
			return bad("the rungs must have this order, each at most once: %s", text.Or(recovery.Rungs()))
		}
		at = i
	}
	for _, rung := range r.Approve {
		if !slices.Contains(Rungs(r), rung) || !rung.Approvable() {
			return bad("approve has %s, which is not a rung of the repair that can wait for an approval", text.Quote(string(rung), maxRepairField))
		}
	}
	f := r.Fault
	switch {
	case len(r.GPUs) > maxRepairGPUs || slices.ContainsFunc(r.GPUs, func(id string) bool { return !text.IsToken(id, maxRepairField, "-:.") }):
		return bad("gpus must be at most %d UUIDs", maxRepairGPUs)
	case r.RebootWaitSeconds < 0 || r.RebootWaitSeconds > int64(MaxRebootWait/time.Second):
		return bad("reboot_wait_seconds must be 0 to %d", int64(MaxRebootWait/time.Second))
	case !short(f.Checker) || !short(f.Reason) || !text.IsPrintable(f.Component, health.MaxComponent) || !short(r.DecisionID):
		return bad("the fault's checker, component and reason must be at most %d characters", maxRepairField)
	}
	return nil
}

func short(s string) bool { return s == "" || text.IsToken(s, maxRepairField, "-_.") }

// rebootWait is how long the node may take to boot. ForGPUs shortens it for a node without GPUs.
func rebootWait(r recovery.Request) time.Duration {
	if r.RebootWaitSeconds > 0 {
		return time.Duration(r.RebootWaitSeconds) * time.Second
	}
	return RebootWaitGPU
}

// ForGPUs returns the plan of a repair for a node with a number of GPUs: without any, and without a
// wait in the request, the node has RebootWaitPlain to boot.
func (p Plan) ForGPUs(gpus int, o Options) Plan {
	if p.Action != ActionRecover || gpus > 0 || o.Recovery.RebootWaitSeconds > 0 {
		return p
	}
	p.Phases = slices.Clone(p.Phases)
	if wait := p.phase(PhaseWaitReboot); wait != nil {
		wait.Budget = RebootWaitPlain
	}
	return p
}

// rungPhases are the phases that perform a rung and verify it. climbs is set if another rung follows:
// then a failure ends the rung instead of parking the operation.
func rungPhases(r recovery.Rung, of recovery.Request, climbs bool) []PhaseSpec {
	var phases []PhaseSpec
	switch r {
	case recovery.RungResetGPU:
		phases = []PhaseSpec{resetGPU(), verifyRepair(PhaseVerifyReset, "Test the node after the GPU reset")}
	case recovery.RungReboot:
		phases = []PhaseSpec{reboot(), waitReboot(of), verifyRepair(PhaseVerifyReboot, "Test the node after the reboot")}
	case recovery.RungReplace:
		return replacePhases(climbs)
	}
	for i := range phases {
		phases[i].Rung, phases[i].Climbs = r, climbs
	}
	return phases
}

// replacePhases delete the machine of the node and create another one. Only a provider that creates
// machines has them. A failure parks, because the machine may be gone; only the tests of the new
// machine climb.
func replacePhases(climbs bool) []PhaseSpec {
	phases := []PhaseSpec{
		tearDown("Delete the machine and everything else in the node's ledger",
			"Continue with a new machine although the provider did not confirm that the old one is deleted; it may still exist, and the ledger keeps its entry"),
		replaceMachine(),
	}
	made := provision(Options{})
	for _, s := range made.Phases {
		if slices.Contains([]string{PhaseAdopt, PhaseMachine, PhaseEnroll, PhaseAgent, PhaseFacts}, s.Name) {
			phases = append(phases, s)
		}
	}
	verify := verifyRepair(PhaseVerifyReplace, "Test the new machine")
	verify.Climbs = climbs
	phases = append(phases, verify)
	for i := range phases {
		phases[i].Rung, phases[i].OnCreate = recovery.RungReplace, true
	}
	return phases
}

func verifyFault() PhaseSpec {
	return PhaseSpec{
		Name: PhaseVerifyFault, Title: "Check whether the fault is still there", Budget: 2 * time.Minute,
		WaitingOn: AttentionAgent, Cause: causeAgent, BestEffort: true,
		Choices: []Option{
			retry("Check the fault again"),
			{Decision: DecisionSkip, Does: "Repair the node without another check", Harm: HarmNone},
		},
	}
}

// ApprovalAsked says who asks for the approvals of a repair: the policy that decided it, or the operator
// that started it.
func ApprovalAsked(r recovery.Request) string {
	if r.DecisionID == "" {
		return "the operator that started the repair asks for"
	}
	return "the policy asks for"
}

// approval is the phase before a rung that a person must approve. It parks at once. Its retry
// approves.
func approval(request recovery.Request, r recovery.Rung) PhaseSpec {
	name, what, harm := PhaseApproveReboot, "reboot the node", HarmNone
	switch r {
	case recovery.RungResetGPU:
		name, what = PhaseApproveReset, "reset the GPUs"
	case recovery.RungReplace:
		name, what, harm = PhaseApproveReplace, "replace the machine, which deletes its disks", HarmFinal
	}
	return PhaseSpec{
		Name: name, Title: "Wait for the approval to " + what, Budget: recordBudget, Rung: r, OnCreate: r == recovery.RungReplace,
		WaitingOn: AttentionOperator, Cause: ApprovalAsked(request) + " an approval before this repair",
		Choices: []Option{
			{Decision: DecisionRetry, Does: "Approve: " + what, Harm: harm},
			{Decision: DecisionSkip, Does: "Refuse, and continue with the next rung of the repair", Harm: HarmNone},
		},
	}
}

func resetGPU() PhaseSpec {
	return PhaseSpec{
		Name: PhaseResetGPU, Title: "Reset the GPUs", Budget: 10 * time.Minute, Destructive: true,
		WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{
			retry("Reset the GPUs again"),
			{Decision: DecisionSkip, Does: "Continue with the next rung of the repair", Harm: HarmNone},
		},
	}
}

func reboot() PhaseSpec {
	return PhaseSpec{
		Name: PhaseReboot, Title: "Restart the node", Budget: taskBudget, Destructive: true,
		WaitingOn: AttentionProvider, Cause: "the agent does not restart the node, and its provider cannot",
		Choices: []Option{
			retry("Restart the node again"),
			{Decision: DecisionSkip, Does: "Continue with the next rung of the repair", Harm: HarmNone},
		},
	}
}

func waitReboot(r recovery.Request) PhaseSpec {
	return PhaseSpec{
		Name: PhaseWaitReboot, Title: "Wait for the node's next boot", Budget: rebootWait(r),
		WaitingOn: AttentionAgent, Cause: "the node does not boot, or its agent does not start; read its console",
		Choices: []Option{
			retry("Wait for the boot again; restart the node again if its agent still runs in the old boot"),
			{Decision: DecisionSkip, Does: "Continue with the next rung of the repair", Harm: HarmNone},
		},
	}
}

// replaceMachine ends the node's instance, whose machine is deleted, and begins the next one.
func replaceMachine() PhaseSpec {
	return PhaseSpec{
		Name: PhaseReplace, Title: "Void the identity of the old machine", Budget: recordBudget,
		WaitingOn: AttentionOperator, Cause: causeRecord,
		Choices: []Option{retry("Void the identity again")},
	}
}

// verifyRepair tests the node after a rung. Its success ends the repair.
func verifyRepair(name, title string) PhaseSpec {
	return PhaseSpec{
		Name: name, Title: title, Budget: verifyBudget, WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{
			retry("Test the node again"),
			{Decision: DecisionSkip, Does: "Continue with the next rung of the repair", Harm: HarmNone},
			{Decision: DecisionForce, Does: "Test again and accept the node even if a test fails; workloads may fail on it", Harm: HarmWork},
		},
	}
}

// restoreCordon gives a repaired node the cordon that it had before.
func restoreCordon() PhaseSpec {
	s := uncordonNode()
	s.Name, s.Title = PhaseRestoreCordon, "Uncordon the repaired node, unless it was cordoned before"
	return s
}

func keepEvidence() PhaseSpec {
	return PhaseSpec{
		Name: PhaseEvidence, Title: "Keep the evidence for the vendor", Budget: recordBudget, Rung: recovery.RungQuarantine,
		WaitingOn: AttentionOperator, Cause: causeRecord,
		Choices: []Option{
			retry("Collect the evidence again"),
			{Decision: DecisionSkip, Does: "End the repair without the evidence; the node stays quarantined", Harm: HarmNone},
		},
	}
}
