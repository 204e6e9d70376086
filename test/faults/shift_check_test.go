package faults_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
)

// typed returns the typed error in err, or err.
func typed(err error) error {
	if e := activities.Typed(err); e != nil {
		return e
	}
	return err
}

// check verifies the guarantees about an operation whose workflow ended with failure.
func (s *shift) check(failure error, before storetest.Node) error {
	var st lifecycle.OperationStatus
	var canceled *temporal.CanceledError
	switch {
	case failure == nil:
		failure = s.env.GetWorkflowResult(&st)
	case errors.As(failure, &canceled):
		failure = canceled.Details(&st)
	}
	if failure != nil {
		return fmt.Errorf("the run of the %s failed: %w", s.op.in.Action, failure)
	}
	o := st.Operation
	s.hit("ended as " + string(o.Status))
	s.logf("ended as %s: %s", o.Status, o.Outcome)
	for _, a := range s.op.decided {
		if a.accepted && !a.done {
			return fmt.Errorf("the decision to %s was not answered", a.request.Decision)
		}
	}
	if o.Status == lifecycle.OperationFailed && !s.op.disturbed {
		return fmt.Errorf("the %s failed: %s", o.Action, o.Outcome)
	}
	return errors.Join(s.checkDestructive(), s.checkRecord(st, before), s.checkDecisions(o.OperationID), s.checkAttempts(o), s.checkNode())
}

// repaired is the state of a node after a repair: what its outcome says.
func repaired(o lifecycle.Operation, prior lifecycle.NodeState) lifecycle.NodeState {
	switch {
	case o.Status == lifecycle.OperationCanceled && strings.Contains(o.Outcome, "the machine was deleted"):
		return lifecycle.NodeRegistered
	case o.Status != lifecycle.OperationCompleted, strings.HasPrefix(o.Outcome, "not needed"):
		return prior
	case strings.HasPrefix(o.Outcome, "not repaired"):
		return lifecycle.NodeQuarantined
	}
	return lifecycle.NodeActive
}

// checkDecisions verifies that the audit has each decision that the operation took.
func (s *shift) checkDecisions(operationID string) error {
	if _, accepted := s.Operation(operationID); !accepted || s.op.disturbed {
		return nil
	}
	taken, noted := 0, 0
	for _, a := range s.op.decided {
		if a.done && a.err == nil {
			taken++
		}
	}
	for _, e := range s.Audit() {
		if e.Action == audit.Decision && e.OperationID == operationID {
			noted++
		}
	}
	if taken != noted {
		return fmt.Errorf("the operation took %d decisions, and the audit has %d", taken, noted)
	}
	return nil
}

// checkDestructive verifies that the node began a destructive task at most once, and once
// more for each decision of a person.
func (s *shift) checkDestructive() error {
	allowed := 1 + s.op.resumed
	for _, a := range s.op.decided {
		if a.err == nil && slices.Contains([]lifecycle.Decision{lifecycle.DecisionRetry, lifecycle.DecisionForce, lifecycle.DecisionExtend}, a.request.Decision) {
			allowed++
		}
	}
	if s.op.begun > allowed {
		return fmt.Errorf("the node began the drain %d times; %d were allowed", s.op.begun, allowed)
	}
	return nil
}

// checkRecord verifies that the store has the end of the operation.
func (s *shift) checkRecord(st lifecycle.OperationStatus, before storetest.Node) error {
	row, accepted := s.Operation(st.Operation.OperationID)
	switch {
	case !accepted:
		// A token of an earlier enrollment may be issued and claimed meanwhile.
		if after := s.Node(s.nodeID); after.State != before.State && after.State.Enrolled() {
			return fmt.Errorf("an operation that was not accepted changed the node from %s to %s", before.State, after.State)
		}
		return nil
	case row.EndedAt == nil:
		return fmt.Errorf("the workflow ended as %s, and the record says %s", st.Operation.Status, row.Status)
	case s.op.disturbed:
		return nil
	case row.Status != st.Operation.Status, row.Document == nil || row.Document.Operation.Status != row.Status, row.Stuck != nil:
		return fmt.Errorf("the workflow ended as %s, and the record says %s", st.Operation.Status, row.Status)
	}
	n, want := s.Node(s.nodeID), row.Prior
	late := s.op.plan.Action == lifecycle.ActionTerminate && n.Instance == lifecycle.InstanceTerminated // the cancel was too late
	if (row.Status == lifecycle.OperationCompleted || late) && s.op.plan.To != "" {
		want = s.op.plan.To
	}
	if row.Action == lifecycle.ActionRecover {
		want = repaired(st.Operation, row.Prior)
	}
	enrolls := s.op.lateBundle && slices.Contains(s.op.plan.Through, n.State)
	if s.op.plan.Holds && want != n.State && !enrolls {
		return fmt.Errorf("the %s of a node that was %s ended as %s, and the node is %s", s.op.in.Action, row.Prior, row.Status, n.State)
	}
	return nil
}

// checkNode verifies that the node has a state in which an action can start, and that a
// machine that exists is in the ledger.
func (s *shift) checkNode() error {
	n := s.Node(s.nodeID)
	if ids := s.unowned(s.nodeID); len(ids) > 0 {
		return fmt.Errorf("machines %v exist and no ledger lists them", ids)
	}
	if n.OperationID == "" && n.State != lifecycle.NodeRemoved && len(lifecycle.ActionsIn(n.State)) == 0 {
		return fmt.Errorf("no operation holds the node, and no action can start: it is %s", n.State)
	}
	return nil
}

// checkAudit verifies that the audit has each thing once.
func (s *shift) checkAudit() error {
	seen := map[string]int{}
	for _, e := range s.Audit() {
		switch {
		case e.Action == audit.Decision:
			seen["decision "+e.Detail["decision_id"]]++
		case e.Action == audit.TaskCreated || e.Action == audit.TaskFinished:
			seen[e.Action+" "+e.Target]++
		case e.Result == audit.Accepted && e.Target == s.nodeID:
			seen["start of operation "+e.OperationID]++
		case e.Target == s.nodeID && slices.Contains([]string{audit.Succeeded, audit.Canceled, audit.Failed}, e.Result) && e.Action != audit.InstanceChanged:
			seen["end of operation "+e.OperationID]++
		}
	}
	for what, n := range seen {
		if n != 1 {
			return fmt.Errorf("the audit has the %s %d times", what, n)
		}
	}
	return nil
}
