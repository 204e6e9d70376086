package workflows

import (
	"cmp"
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// repairWorld is the part of a world that repairs read and write.
type repairWorld struct {
	boot       string // of the node's heartbeats
	conditions []health.Condition
	// attempts are the rows in the order of their first write.
	attempts []recovery.Attempt
	resets   map[string]bool
	evidence *activities.EvidenceInput
	onPower  func(machines.Power)
	deaf     bool // the node API receives no heartbeats
	off      bool // the machine is switched off
	late     bool // the node restarts with repairAll
}

// wholeLadder is a repair with every rung and every approval.
func wholeLadder() recovery.Request {
	all := []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot, recovery.RungReplace, recovery.RungQuarantine}
	return recovery.Request{Rungs: all, Approve: all[:3], Fault: recovery.Fault{Checker: "gpu_xid", Reason: "Xid", Code: 79}}
}

// boots gives the node another boot.
func (w *world) boots(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.repairs.boot = id
}

func (w *world) Boot(context.Context, string) (activities.NodeBoot, error) {
	err := w.note("boot?")
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.repairs.boot
	if id == "" {
		id = "boot-1"
	}
	return activities.NodeBoot{BootID: id, Incarnation: 1, Age: w.heartbeat, Uptime: time.Hour, Deaf: w.repairs.deaf}, err
}

func (w *world) Conditions(context.Context, string) ([]health.Condition, error) {
	return w.repairs.conditions, w.note("conditions?")
}

func (w *world) RecordAttempt(_ context.Context, _ activities.Fence, a recovery.Attempt) (string, error) {
	if err := w.note("attempt " + string(a.Rung) + " " + a.Outcome); err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, known := range w.repairs.attempts {
		if known.Rung == a.Rung {
			a.BootBefore = cmp.Or(known.BootBefore, a.BootBefore)
			w.repairs.attempts[i] = a
			return a.BootBefore, nil
		}
	}
	w.repairs.attempts = append(w.repairs.attempts, a)
	return a.BootBefore, nil
}

func (w *world) BeginReset(_ context.Context, _ activities.Fence, step string) (bool, error) {
	err := w.note("reset begins")
	w.mu.Lock()
	defer w.mu.Unlock()
	began := err == nil && !w.repairs.resets[step]
	if w.repairs.resets == nil {
		w.repairs.resets = map[string]bool{}
	}
	w.repairs.resets[step] = true
	return began, err
}

func (w *world) ForgetReset(_ context.Context, _ activities.Fence, step string) error {
	err := w.note("reset forgotten")
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.repairs.resets, step)
	return err
}

func (w *world) ReplaceInstance(context.Context, activities.Fence, string) (lifecycle.Instance, error) {
	return lifecycle.Instance{InstanceID: "i-2", Provider: "manual", State: lifecycle.InstancePending}, w.note("replace")
}

func (w *world) KeepEvidence(_ context.Context, f activities.Fence, fault recovery.Fault, attempts []recovery.Attempt) error {
	err := w.note("evidence")
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.repairs.evidence = &activities.EvidenceInput{Fence: f, Fault: fault, Attempts: attempts}
	}
	return err
}

// outcomes are the rungs that were recorded, with their outcomes.
func (w *world) outcomesOfRungs() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.repairs.attempts {
		all = append(all, string(a.Rung)+" "+a.Outcome)
	}
	return all
}
