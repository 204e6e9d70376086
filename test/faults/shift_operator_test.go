package faults_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// planDisturbances plans what persons do to the operation during the storm.
func (s *shift) planDisturbances() {
	if s.calm() {
		return
	}
	for range s.r.IntN(7) {
		s.after(upToLog(s.r, storm/2), s.disturb)
	}
}

// disturb does one random thing to the current operation.
func (s *shift) disturb() {
	if s.calm() {
		return
	}
	id := s.op.in.OperationID
	switch n := s.r.IntN(100); {
	case n < 8:
		s.hit("cancel in the Web UI")
		s.logf("cancel in the Web UI")
		s.env.CancelWorkflow()
	case n < 14:
		panic(terminated{})
	case n < 18:
		s.hit("superseded")
		s.logf("the operation loses its node")
		s.op.disturbed = true
		s.Abandon(id)
		s.Rehydrate(s.nodeID)
	case n < 32:
		s.hit("long history")
		s.logf("the history is long")
		s.env.SetCurrentHistoryLength(5000)
	case n < 40:
		s.hit("forged completion")
		s.forge()
	case n < 46:
		s.hit("garbage signal")
		s.env.SignalWorkflow(lifecycle.SignalAgent, []any{nil, "text", lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: s.nodeID,
			Incarnation: 1}, lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned, OperationID: id, Step: string(task.WorkloadDrain)}}[s.r.IntN(4)])
	case n < 52:
		s.hit("task canceled by an operator")
		s.CancelTask(lifecycle.TaskID(id, s.openStep()))
		s.relay()
	case n < 58:
		s.issueBundle(s.op.in.Action == lifecycle.ActionReissueEnrollment)
	default:
		all := lifecycle.Decisions()
		s.decide(lifecycle.ResolveRequest{Decision: all[s.r.IntN(len(all))]})
	}
}

func (s *shift) openStep() string {
	for _, step := range slices.Sorted(maps.Keys(s.waits)) {
		return step
	}
	return ""
}

// forge completes the activity of a task without a result.
func (s *shift) forge() {
	for _, step := range slices.Sorted(maps.Keys(s.waits)) {
		var err error
		if s.r.IntN(2) == 0 {
			err = schema.NewError(schema.KindFenced, "forged")
		}
		_ = s.env.CompleteActivity(s.waits[step].token, task.Reference{}, err)
	}
}

// decide sends a decision.
func (s *shift) decide(r lifecycle.ResolveRequest) *answer {
	op := s.op
	r.OperationID, r.Reason, r.By, r.Via = op.in.OperationID, "because", "bob", "api"
	a := &answer{request: r}
	op.decided = append(op.decided, a)
	s.hit("decision " + string(r.Decision))
	id := fmt.Sprintf("%s-%d", op.in.OperationID, len(op.decided))
	s.env.UpdateWorkflow(lifecycle.UpdateResolve, id, &testsuite.TestUpdateCallback{
		OnAccept: func() { a.accepted = true },
		OnReject: func(err error) { a.done, a.err = true, err },
		OnComplete: func(_ any, err error) {
			a.done, a.err = true, err
			s.logf("decision to %s: %v", r.Decision, err)
		},
	}, r)
	return a
}

// watchEvery is how often someone looks at the operation.
const watchEvery = 10 * time.Minute

// watch looks at the operation. After the storm it follows the first
// option of a parked operation.
func (s *shift) watch() {
	st, err := s.status()
	if err != nil {
		panic(stranded{"the status query fails: " + err.Error()})
	}
	if stuck := st.Operation.Stuck; stuck != nil {
		s.checkStuck(*stuck)
		if s.calm() {
			s.heal(s.r) // this fault ends, too
			s.follow(st.Operation)
		}
	}
	if s.now().Sub(s.start) > 30*storm {
		panic(stranded{fmt.Sprintf("the %s does not end: %+v", s.op.in.Action, st.Operation)})
	}
	s.env.RegisterDelayedCallback(s.watch, watchEvery)
}

func (s *shift) checkStuck(stuck lifecycle.Stuck) {
	switch {
	case stuck.Reason == lifecycle.ReasonRecordUnavailable:
	case len(stuck.Options) == 0:
		panic(stranded{fmt.Sprintf("the operation is parked without an option: %+v", stuck)})
	case stuck.Options[0].Harm != lifecycle.HarmNone:
		panic(stranded{fmt.Sprintf("the recommended option does harm: %+v", stuck)})
	}
}

// maxFollowed is how many recommended options an operation may need without faults.
const maxFollowed = 8

// follow does what the first option of a parked operation says.
func (s *shift) follow(op lifecycle.Operation) {
	if len(op.Stuck.Options) == 0 {
		return
	}
	s.op.followed++
	if s.op.followed > maxFollowed {
		panic(stranded{fmt.Sprintf("%d recommended options did not end the operation: %+v", maxFollowed, *op.Stuck)})
	}
	first := op.Stuck.Options[0]
	s.hit("recommended option followed")
	s.logf("parked in %s (%s); follows: %s", op.Stuck.Phase, op.Stuck.Reason, first.Command)
	switch first.Decision {
	case lifecycle.DecisionBootstrap:
		s.issueBundle(false)
	case lifecycle.DecisionResume:
		s.resume(op, strings.Fields(first.Command)[3])
	default:
		since := op.Stuck.Since
		s.address(lifecycle.ResolveRequest{OperationID: op.OperationID, Phase: op.Stuck.Phase, StuckSince: &since, Decision: first.Decision})
		s.poll()
	}
}

// resume resumes a lost task. If that is refused, it follows the next step that the
// refusal names.
func (s *shift) resume(op lifecycle.Operation, taskID string) {
	err := s.Resume(taskID)
	if err == nil {
		s.op.resumed++
		s.relay()
		s.offer(taskID)
		return
	}
	s.logf("the task cannot be resumed: %v", err)
	if strings.HasPrefix(schema.AsError(err).Next, "gpuaas op retry") {
		s.address(lifecycle.ResolveRequest{OperationID: op.OperationID, Decision: lifecycle.DecisionRetry})
	}
}

// address sends a recommended decision, which must be accepted.
func (s *shift) address(r lifecycle.ResolveRequest) {
	a := s.decide(r)
	s.after(5*time.Second, func() {
		if kind := schema.KindOf(typed(a.err)); a.err != nil && kind != schema.KindDecisionOutdated && kind != schema.KindOperationInProgress {
			panic(stranded{fmt.Sprintf("the recommended decision to %s is refused: %v", r.Decision, a.err)})
		}
	})
}
