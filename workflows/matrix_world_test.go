package workflows

import (
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// taskOf is the node task of a phase, "" if it has none.
func taskOf(phase string) task.Type {
	return map[string]task.Type{
		lifecycle.PhaseFacts: task.FactsCollect, lifecycle.PhaseProbe: task.NodeProbe, lifecycle.PhaseSKU: task.FactsCollect,
		lifecycle.PhaseCordon: task.WorkloadCordon, lifecycle.PhaseDrain: task.WorkloadDrain, lifecycle.PhaseIdle: task.WorkloadCordon,
		lifecycle.PhaseUpgrade:  task.AgentUpgrade,
		lifecycle.PhaseUncordon: task.WorkloadUncordon, lifecycle.PhaseUndoCordon: task.WorkloadUncordon,
		lifecycle.PhaseReboot: task.NodeReboot, lifecycle.PhaseVerifyReboot: task.NodeVerify,
		lifecycle.PhaseRestoreCordon: task.WorkloadUncordon, lifecycle.PhaseUndoRecover: task.WorkloadUncordon,
	}[phase]
}

// callOf is the port's call of a phase, "" if it has none.
func callOf(phase string) string {
	return map[string]string{
		lifecycle.PhaseAdopt: "ensure", lifecycle.PhaseTeardown: "release", lifecycle.PhaseUndoAdopt: "release",
		lifecycle.PhaseAgent: "heartbeat?", lifecycle.PhaseMachine: "describe", lifecycle.PhaseUndoTeardown: "describe",
	}[phase]
}

// eventOf is the event for which a phase waits, "" if it waits for none.
func eventOf(phase string) lifecycle.AgentEventName {
	return map[string]lifecycle.AgentEventName{
		lifecycle.PhaseBundle: lifecycle.EventBundleIssued, lifecycle.PhaseClaim: lifecycle.EventTokenClaimed,
		lifecycle.PhasePoll: lifecycle.EventFirstPoll, lifecycle.PhaseEnroll: lifecycle.EventFirstPoll,
	}[phase]
}

// fails makes a phase fail permanently, until repair.
func (w *world) fails(phase string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch t, call := taskOf(phase), callOf(phase); {
	case phase == lifecycle.PhaseSKU:
		w.gpus = 8
	case phase == lifecycle.PhaseWaitReboot:
		w.rebootsLate(func() { w.fail["boot?"] = schema.NewError(schema.KindInvalidRequest, "no luck") })
	case phase == lifecycle.PhaseReboot:
		w.fail["power reset"] = schema.NewError(schema.KindInvalidRequest, "no luck")
		fallthrough
	case t != "":
		w.on[t] = func(activities.TaskSpec) (task.Result, error) {
			return task.Result{}, final(schema.KindTaskFailed, "no luck")
		}
	case call != "":
		w.fail[call] = schema.NewError(schema.KindInvalidRequest, "no luck")
	}
}

// hold keeps a phase running, until repair.
func (w *world) hold(phase string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch t, call := taskOf(phase), callOf(phase); {
	case phase == lifecycle.PhaseSKU:
		w.gpus = 8
		first := true
		w.on[t] = func(activities.TaskSpec) (task.Result, error) {
			if first {
				first = false
				return succeeded(w.defaultOutput(t)), nil
			}
			return task.Result{}, activities.Fail(errDown)
		}
	case phase == lifecycle.PhaseWaitReboot:
		w.rebootsLate(func() {})
	case t != "":
		w.on[t] = func(activities.TaskSpec) (task.Result, error) { return task.Result{}, activities.Fail(errDown) }
	case call != "":
		w.fail[call] = errDown
	}
}

// rebootsLate lets the node restart only with repair, and calls then when it has the task.
func (w *world) rebootsLate(then func()) {
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.repairs.late = true
		then()
		return succeeded(struct{}{}), nil
	}
}

// free lets tasks of a type succeed again.
func (w *world) free(t task.Type) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.on, t)
}

// block lets workloads block a drain, until repair.
func (w *world) block() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on[task.WorkloadDrain] = func(activities.TaskSpec) (task.Result, error) {
		return succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Reason: "ignores SIGTERM"}}}), nil
	}
}

// breakAll makes every node task and every call of the provider fail permanently.
func (w *world) breakAll() {
	for _, phase := range []string{lifecycle.PhaseFacts, lifecycle.PhaseProbe, lifecycle.PhaseSKU, lifecycle.PhaseCordon, lifecycle.PhaseUpgrade,
		lifecycle.PhaseDrain, lifecycle.PhaseUndoCordon, lifecycle.PhaseAdopt, lifecycle.PhaseUndoAdopt, lifecycle.PhaseUndoTeardown, lifecycle.PhaseAgent,
		lifecycle.PhaseReboot, lifecycle.PhaseWaitReboot, lifecycle.PhaseVerifyReboot} {
		w.fails(phase)
	}
}

func (w *world) repairAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.fail)
	clear(w.on)
	w.gpus = 0
	if w.repairs.late {
		w.repairs.boot = "boot-2"
	}
}

// events reports the events that happened before the phase.
func (p *place) events(phase string) {
	for _, before := range []string{lifecycle.PhaseBundle, lifecycle.PhaseClaim, lifecycle.PhasePoll} {
		if before == phase || before == lifecycle.PhasePoll && phase == lifecycle.PhaseEnroll {
			return
		}
		p.env.RegisterDelayedCallback(func() { p.event(eventOf(before)) }, time.Second)
	}
}

// sendEvents reports that the node polls.
func (p *place) sendEvents() { p.event(lifecycle.EventFirstPoll) }

func (p *place) event(name lifecycle.AgentEventName) {
	incarnation := int64(1)
	if p.cell.action == lifecycle.ActionReissueEnrollment && name != lifecycle.EventBundleIssued {
		incarnation = 2
	}
	p.report(lifecycle.AgentEvent{Event: name, NodeID: testNode, Incarnation: incarnation})
}
