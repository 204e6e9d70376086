package cli

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// abandonedDrain is a drain whose run was terminated.
func abandonedDrain() lifecycle.OperationStatus {
	st := drainAt(1, lifecycle.OperationAbandoned)
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	stuck := plan.Abandoned(st.Node, lifecycle.NodeActive, lifecycle.Options{}, lifecycle.RunTerminated)
	stuck.Phase, stuck.Since = lifecycle.PhaseDrain, *at(0)
	st.Operation.Stuck = &stuck
	p := &st.Operation.Phases[1]
	p.State, p.Reason, p.EndedAt = lifecycle.PhaseFailed, stuck.Message, &stuck.Since
	return st
}

func (a *fakeAPI) postRehydrate(w http.ResponseWriter, r *http.Request) {
	var req struct{ Reason string }
	if n := a.find(w, r); n != nil && a.read(w, r, &req) {
		a.decided = append(a.decided, "rehydrate "+n.Host+" "+req.Reason)
		if a.rehydrate != nil {
			done, err := a.rehydrate(*n)
			if err != nil {
				a.fail(w, schema.AsError(err))
				return
			}
			a.answer(w, http.StatusOK, done)
			return
		}
		a.answer(w, http.StatusOK, a.rehydrated)
	}
}

func TestNodeRehydrate(t *testing.T) {
	t.Parallel()
	ref := lifecycle.NodeRef{NodeID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive}
	t.Run("ended", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.rehydrated = lifecycle.Rehydration{Node: ref, From: lifecycle.NodeDraining, Ended: []lifecycle.EndedOperation{
			{OperationID: operationID, Action: lifecycle.ActionDrain, Reason: lifecycle.RunTerminated, Outcome: "its workflow run was terminated"}}}
		h.golden("rehydrate", "node", "rehydrate", "gpu-17", "--reason", "by mistake")
		h.golden("rehydrate-json", "node", "rehydrate", "gpu-17", "-o", "json")
		require.Equal(t, []string{"rehydrate gpu-17 by mistake", "rehydrate gpu-17 "}, h.api.decided)
		h.api.rehydrated.Cordoned, h.api.rehydrated.Next = true, lifecycle.NodeNext(ref, true, false)
		h.golden("rehydrate-cordoned", "node", "rehydrate", "gpu-17")
	})
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.rehydrated = lifecycle.Rehydration{Node: ref, From: lifecycle.NodeActive, Ended: []lifecycle.EndedOperation{}}
		h.golden("rehydrate-none", "node", "rehydrate", "gpu-17")
		h.api.rehydrated.From = lifecycle.NodeTerminating
		h.golden("rehydrate-restored", "node", "rehydrate", "gpu-17")
		require.Equal(t, schema.ExitUsage, h.run("node", "rehydrate", "gpu-17", "--reason", lifecycle.ReasonPlaceholder))
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.refuse = schema.NewError(schema.KindOperationInProgress, "the run of the drain is open").WithNext("gpuaas op show gpu-17")
		h.golden("rehydrate-refused", "node", "rehydrate", "gpu-17")
	})
}

// TestCordonedNodeNamesItsNext: the cordon that an operation left on a node is shown with
// the command that removes it.
func TestCordonedNodeNamesItsNext(t *testing.T) {
	t.Parallel()
	h := setup(t)
	n := busy()
	n.State, n.Operation = lifecycle.NodeActive, nil
	h.api.nodes = []wire.NodeView{n}
	h.golden("node-show-cordoned", "node", "show", "gpu-17")
}

// TestUnenrolledNodeNamesItsNext: every page of a node whose enrollment was abandoned shows
// the command that continues.
func TestUnenrolledNodeNamesItsNext(t *testing.T) {
	t.Parallel()
	for _, state := range []lifecycle.NodeState{lifecycle.NodeBootstrapIssued, lifecycle.NodeEnrolling} {
		h := setup(t)
		plan, _ := lifecycle.PlanOf(lifecycle.ActionEnroll, lifecycle.Options{})
		st := lifecycle.OperationStatus{Operation: operation(lifecycle.ActionEnroll, lifecycle.OperationAbandoned), Node: lifecycle.NodeRef{NodeID: nodeID, Host: "gpu-17", State: state}}
		stuck := plan.Abandoned(st.Node, lifecycle.NodeRegistered, lifecycle.Options{}, lifecycle.RunTerminated)
		st.Operation.Stuck = &stuck
		h.temporal.parked = []lifecycle.OperationStatus{st}
		n := node()
		n.State, n.Operation = state, &wire.OperationSummary{OperationID: operationID, Action: lifecycle.ActionEnroll, Status: lifecycle.OperationAbandoned, Stuck: &stuck}
		h.api.nodes, h.temporal.statuses = []wire.NodeView{n}, []lifecycle.OperationStatus{st}
		for _, page := range [][]string{{"stuck"}, {"node", "show", "gpu-17"}, {"op", "show", "gpu-17"}} {
			require.Zero(t, h.run(page...))
			require.Contains(t, h.out.String(), "gpuaas node rehydrate gpu-17", page)
		}
		require.Contains(t, h.out.String(), "gpuaas node enroll gpu-17\n", "or start it again at once")

		h.api.rehydrated = lifecycle.Rehydration{Node: st.Node, From: state, Next: lifecycle.NodeNext(st.Node, false, false), Ended: []lifecycle.EndedOperation{
			{OperationID: operationID, Action: lifecycle.ActionEnroll, Reason: lifecycle.RunTerminated, Outcome: "its run ended: run_terminated; the node stays " + string(state)}}}
		st.Operation.End(lifecycle.OperationFailed, h.api.rehydrated.Ended[0].Outcome, start())
		h.api.nodes[0].Operation, h.temporal.statuses = nil, []lifecycle.OperationStatus{st}
		for _, page := range [][]string{{"node", "rehydrate", "gpu-17"}, {"node", "show", "gpu-17"}, {"op", "show", "gpu-17"}} {
			require.Zero(t, h.run(page...))
			require.Regexp(t, `(?m)^ *[Nn]ext: +gpuaas node enroll gpu-17$`, h.out.String(), page)
		}
	}
}

// TestAbandoned: no command shows an abandoned operation as running or waits for it.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"op-show": {"op", "show", "gpu-17"}, "op-watch": {"op", "watch", "gpu-17"},
		"wait": {"node", "drain", "gpu-17", "--yes"}, "node-show": {"node", "show", "gpu-17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			st := abandonedDrain()
			h.temporal.statuses = []lifecycle.OperationStatus{st}
			n := busy()
			n.Operation.Status, n.Operation.Stuck = st.Operation.Status, st.Operation.Stuck
			h.api.nodes = []wire.NodeView{n}
			h.golden("abandoned-"+name, args...)
		})
	}
}
