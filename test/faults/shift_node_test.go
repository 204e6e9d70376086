package faults_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
)

// wait notes that an activity waits for a task, and ends the wait at its time limit.
func (s *shift) wait(info activity.Info) {
	s.mu.Lock()
	n := s.waits[info.ActivityID].n + 1
	s.waits[info.ActivityID] = waiting{token: info.TaskToken, runID: info.WorkflowExecution.RunID, n: n}
	env := s.env
	s.mu.Unlock()
	s.after(info.ScheduleToCloseTimeout, func() {
		if s.waits[info.ActivityID].n == n && s.env == env {
			_ = env.CompleteActivity(info.TaskToken, nil, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil))
		}
	})
}

// offer lets the node poll for a task that was enqueued.
func (s *shift) offer(id string) {
	s.after(time.Second, func() { s.dispatch(id) })
}

// dispatch is the node's poll.
func (s *shift) dispatch(id string) {
	if until, away := s.unreachable(); away {
		s.after(until.Sub(s.now())+time.Second, func() { s.dispatch(id) })
		return
	}
	spec, epoch, ok := s.Dispatch(id)
	if !ok {
		return
	}
	s.logf("node gets %s, lease %d", spec.Step, epoch)
	r := s.random("task" + id)
	pause := time.Duration(0)
	if !s.calm() {
		pause = upToLog(r, 2*time.Minute)
	}
	s.after(pause, func() {
		if !s.Leased(id, epoch) {
			s.hit("task dropped by the node")
			return
		}
		if spec.Type == task.WorkloadDrain && s.op.in.OperationID == spec.OperationID {
			s.op.begun++
			if open := s.OpenDestructive(spec.OperationID); open != 1 {
				panic(stranded{fmt.Sprintf("the node begins a drain while %d drains of the operation are open", open)})
			}
		}
		s.perform(r, id, spec.Type, forced(spec.Params), epoch)
	})
}

func forced(raw json.RawMessage) bool {
	var p task.DrainParams
	return len(raw) > 0 && json.Unmarshal(raw, &p) == nil && p.Force
}

// perform runs a task on the node: mostly it succeeds.
func (s *shift) perform(r *rand.Rand, id string, t task.Type, force bool, epoch int64) {
	result := task.Result{LeaseEpoch: epoch, Status: task.Succeeded, Output: s.output(t, true, force)}
	took := time.Second
	if s.rebooted(id) {
		s.report(id, task.Result{LeaseEpoch: epoch, Status: task.Failed, Code: schema.KindTaskFailed,
			Message: lifecycle.ReasonOtherBoot + ": the node has another boot"})
		return
	}
	if !s.calm() {
		took = upToLog(r, 10*time.Minute)
		switch n := r.IntN(100); {
		case n < 10:
			codes := []schema.Kind{schema.KindTaskFailed, schema.KindUnfit, schema.KindTaskRefused, schema.KindFenced, schema.KindServiceUnavailable, "nonsense"}
			result = task.Result{LeaseEpoch: epoch, Status: task.Failed, Code: codes[r.IntN(len(codes))], Message: "no luck"}
			s.hit("task failed")
		case n < 14:
			result = task.Result{LeaseEpoch: epoch, Status: task.Canceled}
			s.hit("task canceled by the node")
		case n < 18:
			result.Output = json.RawMessage(`[]`)
			s.hit("malformed output")
		case n < 30:
			result.Output = s.output(t, false, force)
			s.hit("bad output")
		case n < 42:
			s.crash(r, id, result)
			return
		case n < 52:
			took = upToLog(r, 6*time.Hour)
		}
	}
	s.after(took, func() { s.report(id, result) })
}

// crash ends the agent while it runs a task. The lease expires. The result may be reported
// later.
func (s *shift) crash(r *rand.Rand, id string, result task.Result) {
	s.hit("agent crashed in a task")
	s.logf("the agent crashes in task %.8s", id)
	s.after(90*time.Second, func() {
		s.Expire(id, result.LeaseEpoch)
		s.relay()
		s.offer(id)
	})
	if r.IntN(2) == 0 {
		s.after(upToLog(r, 3*time.Hour), func() { s.report(id, result) })
	}
}

// report posts a result until the API responds.
func (s *shift) report(id string, result task.Result) {
	if until, away := s.unreachable(); away {
		s.after(until.Sub(s.now())+time.Second, func() { s.report(id, result) })
		return
	}
	err := s.Report(id, result)
	s.logf("node reports task %.8s as %s: %v", id, result.Status, err)
	if err != nil {
		s.hit("result refused")
		return
	}
	s.noteWorkloads(id, result)
	s.noteRepair(id, result)
	if r := s.random("twice"); !s.calm() && r.IntN(8) == 0 {
		s.hit("result sent again")
		s.after(upToLog(r, time.Hour), func() { s.report(id, result) })
	}
	s.relay()
}

// unreachable returns when the node's agent reaches the API again, and whether it does not now.
func (s *shift) unreachable() (until time.Time, away bool) {
	for _, p := range []party{theNode, theDatabase} {
		if until, away := s.away(p); away {
			return until, true
		}
	}
	s.mu.Lock()
	until = s.onAt
	s.mu.Unlock()
	return until, s.off()
}

// rebooted reports whether the task is the restart of an earlier boot.
func (s *shift) rebooted(id string) bool {
	var p task.RebootParams
	row, _ := s.Task(id)
	return row.Type == task.NodeReboot && json.Unmarshal(row.Params, &p) == nil && p.BootID != s.Node(s.nodeID).BootID
}

// noteRepair is what the machine does once the server has the result of a repair.
func (s *shift) noteRepair(id string, result task.Result) {
	row, _ := s.Task(id)
	if result.Status != task.Succeeded {
		return
	}
	switch row.Type {
	case task.NodeReboot:
		var p task.RebootParams
		if json.Unmarshal(row.Params, &p) == nil && p.BootID == s.Node(s.nodeID).BootID {
			s.restart("the agent")
		}
	case task.GPUReset:
		s.heal(s.random("reset"))
	}
}

// noteWorkloads is the node's next heartbeat after a drain.
func (s *shift) noteWorkloads(id string, result task.Result) {
	var out task.DrainResult
	row, _ := s.Task(id)
	if row.Type == task.WorkloadDrain && result.Status == task.Succeeded && json.Unmarshal(result.Output, &out) == nil && len(out.Blocked) == 0 {
		s.Change(s.nodeID, func(n *storetest.Node) { n.Workloads = nil })
	}
}

// output is the output of a task that succeeded, good or bad.
func (s *shift) output(t task.Type, good, force bool) json.RawMessage {
	var out any
	switch t {
	case task.FactsCollect:
		f := inventory.Facts{CPUs: 2, MemoryBytes: 1 << 30}
		if !good {
			f.CPUs = 0
		}
		out = f
	case task.NodeProbe:
		p := inventory.ProbeReport{Healthy: good}
		if !good {
			p.Checks = []inventory.ProbeCheck{{Name: "disk", Detail: "3 MiB free"}}
		}
		out = p
	case task.WorkloadDrain:
		d := task.DrainResult{Stopped: []string{}}
		if !good && !force {
			d.Blocked = []task.Blocker{{Workload: "job-1", Reason: "ignores SIGTERM"}}
		}
		out = d
	case task.GPUReset:
		out = task.ResetResult{Reset: []string{}}
	case task.NodeReboot:
		out = struct{}{}
	case task.NodeVerify:
		ok := good && s.unhealthy().Checker == ""
		out = task.VerifyResult{OK: ok, BootID: s.Node(s.nodeID).BootID, Tests: []recovery.Test{{Name: "gpu_xid", OK: ok}}}
	default:
		out = task.CordonResult{Cordoned: t == task.WorkloadCordon, Was: s.Node(s.nodeID).Cordoned, Workloads: []task.Workload{}}
	}
	raw, _ := json.Marshal(out)
	return raw
}

// relay delivers what the store has for Temporal, with delays.
func (s *shift) relay() {
	for _, m := range s.Messages() {
		s.deliver(m)
	}
}

func (s *shift) deliver(m storetest.Message) {
	r := s.random("relay")
	delay := 50 * time.Millisecond
	if until, away := s.away(theRelay); away {
		delay = until.Sub(s.now())
	} else if !s.calm() && r.IntN(6) == 0 {
		delay = upToLog(r, time.Hour)
		s.hit("late delivery")
	}
	s.after(delay, func() {
		if m.TaskID == "" {
			if m.WorkflowID != lifecycle.WorkflowID(s.op.in.Action, "gpu-17", s.nodeID) {
				return
			}
			if !s.calm() && r.IntN(15) == 0 {
				s.hit("signal lost")
				s.logf("the signal %s is lost", m.Event.Event)
				return
			}
			s.env.SignalWorkflow(lifecycle.SignalAgent, m.Event)
			return
		}
		row, _ := s.Task(m.TaskID)
		s.mu.Lock()
		wait, ok := s.waits[m.Owner.ActivityID]
		s.mu.Unlock()
		if ok && row.Result != nil {
			_ = s.env.CompleteActivity(wait.token, task.Reference{TaskID: m.TaskID, Status: row.Status}, nil)
		}
	})
}

// enroll lets an operator and the agent do their part of an enrollment or a reissue.
func (s *shift) enroll() {
	reissue := s.op.in.Action == lifecycle.ActionReissueEnrollment
	if s.op.in.Action != lifecycle.ActionEnroll && !reissue {
		return
	}
	r := s.random("enroll")
	if s.calm() || r.IntN(6) > 0 {
		s.after(upToLog(r, time.Hour), func() { s.issueBundle(reissue) })
	}
}

// issueBundle issues a token, which the agent claims, and with whose certificate it polls.
func (s *shift) issueBundle(reissue bool) {
	s.logf("a bundle is issued")
	if row, accepted := s.Operation(s.op.in.OperationID); accepted && row.EndedAt != nil {
		s.op.lateBundle = true
	}
	s.IssueBundle(s.nodeID, reissue)
	s.relay()
	r := s.random("bundle")
	if !s.calm() && r.IntN(5) == 0 {
		s.hit("bundle not installed")
		return
	}
	s.after(upToLog(r, 3*time.Hour), func() {
		s.ClaimToken(s.nodeID)
		s.relay()
		if !s.calm() && r.IntN(5) == 0 {
			s.hit("agent cannot poll")
			return
		}
		s.after(upToLog(r, time.Hour), s.poll)
	})
}

func (s *shift) poll() {
	s.Poll(s.nodeID)
	s.relay()
}
