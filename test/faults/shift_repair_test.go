package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
)

// Boot implements activities.Repairs, as do the methods below, with faults.
func (w *shiftWorld) Boot(ctx context.Context, id string) (activities.NodeBoot, error) {
	w.heartbeat(id)
	return callFor(w, theDatabase, "boot", func() (activities.NodeBoot, error) { return w.Store.Boot(ctx, id) })
}

func (w *shiftWorld) Conditions(ctx context.Context, id string) ([]health.Condition, error) {
	return callFor(w, theDatabase, "conditions", func() ([]health.Condition, error) { return w.Store.Conditions(ctx, id) })
}

func (w *shiftWorld) RecordAttempt(ctx context.Context, f activities.Fence, a recovery.Attempt) (string, error) {
	return callFor(w, theDatabase, "attempt", func() (string, error) { return w.Store.RecordAttempt(ctx, f, a) })
}

func (w *shiftWorld) BeginReset(ctx context.Context, f activities.Fence, step string) (bool, error) {
	return callFor(w, theDatabase, "begin reset", func() (bool, error) { return w.Store.BeginReset(ctx, f, step) })
}

func (w *shiftWorld) ForgetReset(ctx context.Context, f activities.Fence, step string) error {
	return w.call(theDatabase, "forget reset", func() error { return w.Store.ForgetReset(ctx, f, step) })
}

func (w *shiftWorld) ReplaceInstance(ctx context.Context, f activities.Fence, id string) (lifecycle.Instance, error) {
	return callFor(w, theDatabase, "replace", func() (lifecycle.Instance, error) { return w.Store.ReplaceInstance(ctx, f, id) })
}

func (w *shiftWorld) KeepEvidence(ctx context.Context, f activities.Fence, fault recovery.Fault, a []recovery.Attempt) error {
	return w.call(theDatabase, "evidence", func() error { return w.Store.KeepEvidence(ctx, f, fault, a) })
}

// heartbeat is the newest heartbeat of a node whose machine is on and whose agent is reachable.
func (w *shiftWorld) heartbeat(id string) {
	if _, away := w.away(theNode); away || w.off() {
		return
	}
	w.Change(id, func(n *storetest.Node) { n.HeartbeatAt = w.now() })
}

// off reports whether the machine restarts.
func (w *shiftWorld) off() bool {
	w.mu.Lock()
	on := w.onAt
	w.mu.Unlock()
	return w.now().Before(on)
}

// fail gives the node a fault, which a restart ends with some probability.
func (s *shift) fail() {
	s.hit("fault of the node")
	f := faultOf(s.r)
	s.logf("the node has the fault %s %s", f.Checker, f.Repair)
	s.Change(s.nodeID, func(n *storetest.Node) {
		n.Conditions = []health.Condition{{Checker: f.Checker, Component: f.Component, Status: health.Unhealthy, Reason: f.Reason,
			Repair: f.Repair, Since: s.now()}}
	})
}

func faultOf(r *rand.Rand) recovery.Fault {
	repairs := []health.Repair{health.RepairResetGPU, health.RepairReboot, health.RepairRMA}
	return recovery.Fault{Checker: "gpu_xid", Component: "GPU-1", Reason: "Xid", Code: 79, Repair: repairs[r.IntN(len(repairs))]}
}

// unhealthy is the node's fault, the zero value if it has none.
func (s *shift) unhealthy() (f recovery.Fault) {
	for _, c := range s.Node(s.nodeID).Conditions {
		if c.Status == health.Unhealthy {
			f = recovery.Fault{Checker: c.Checker, Component: c.Component, Reason: c.Reason, Code: c.Code, Repair: c.Repair, Since: c.Since}
		}
	}
	return f
}

// repair is a random request for the repair of the node's fault.
func (s *shift) repair() recovery.Request {
	q := recovery.Request{Fault: s.unhealthy()}
	for _, rung := range []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot, recovery.RungReplace, recovery.RungQuarantine} {
		if s.r.IntN(2) == 0 {
			q.Rungs = append(q.Rungs, rung)
		}
	}
	for _, rung := range lifecycle.Rungs(q) {
		if rung != recovery.RungQuarantine && s.r.IntN(6) == 0 {
			q.Approve = append(q.Approve, rung)
		}
	}
	return q
}

// restart restarts the machine: its agent is silent until it has booted, and the fault may end.
func (s *shift) restart(by string) {
	s.hit("restart by " + by)
	r := s.random("restart")
	off := time.Minute
	if !s.calm() {
		off = upToLog(r, 2*time.Hour)
	}
	at := s.now().Add(off)
	s.logf("%s restarts the machine, which boots in %s", by, off.Round(time.Second))
	s.mu.Lock()
	s.onAt = at
	s.mu.Unlock()
	s.Boots(s.nodeID, at)
	s.heal(r)
}

// heal ends the fault of the node, if the repair does.
func (s *shift) heal(r *rand.Rand) {
	if !s.calm() && r.IntN(3) == 0 {
		s.hit("repair without effect")
		return
	}
	s.Change(s.nodeID, func(n *storetest.Node) {
		for i := range n.Conditions {
			n.Conditions[i].Status, n.Conditions[i].Repair = health.Healthy, ""
		}
	})
}

// checkAttempts verifies the record of a repair: each of its rungs once, in order and with an outcome.
func (s *shift) checkAttempts(o lifecycle.Operation) error {
	if o.Action != lifecycle.ActionRecover || s.op.disturbed {
		return nil
	}
	rungs := lifecycle.Rungs(s.op.in.Options.Recovery)
	at := -1
	for _, a := range s.Attempts(o.OperationID) {
		i := slices.Index(rungs, a.Rung)
		if i <= at {
			return fmt.Errorf("the repair of the rungs %v recorded the rung %s at the wrong time", rungs, a.Rung)
		}
		at = i
		if a.Outcome == "" && o.Status == lifecycle.OperationCompleted {
			return fmt.Errorf("the repair ended as %s, and its rung %s has no outcome", o.Status, a.Rung)
		}
		if a.Outcome == "cured" && a.Rung == recovery.RungReboot && (a.BootAfter == "" || a.BootAfter == a.BootBefore) && !s.op.decidedTo(lifecycle.DecisionSkip) {
			return fmt.Errorf("a reboot cured the node without another boot: %+v", a)
		}
	}
	return nil
}

// decidedTo reports whether a decision was taken.
func (c *current) decidedTo(d lifecycle.Decision) bool {
	return slices.ContainsFunc(c.decided, func(a *answer) bool { return a.err == nil && a.request.Decision == d })
}
