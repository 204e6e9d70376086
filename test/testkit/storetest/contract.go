package storetest

import (
	"cmp"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Subject is a store under Contract.
type Subject struct {
	activities.Records
	activities.Tasks
	activities.Ledger
	// Now is the store's clock.
	Now func() time.Time
	// Register adds a node.
	Register func(t *testing.T, state lifecycle.NodeState) (nodeID, host string)
	// Dispatch lets the node take its pending task and returns the lease. Report posts the result.
	Dispatch func(t *testing.T, nodeID, taskID string) (epoch int64)
	Report   func(nodeID, taskID string, r task.Result) error
	// Abandon and Continue are those of activities.Abandoner.
	Abandon, Continue func(operationID, runID string) error
}

// rule is one rule of the store: what do does ends with an error of the kind, "" for none.
type rule struct {
	name   string
	state  lifecycle.NodeState
	do     func(b *bench) error
	kind   schema.Kind
	reason string
}

// Contract checks the rules of a store: who may write what, and what a repeated, a late
// and a superseded write does.
func Contract(t *testing.T, open func(t *testing.T) Subject) {
	t.Helper()
	s := open(t)
	for _, rules := range [][]rule{claimRules(), recordRules(), undoRules(), taskRules(), firstTaskRules(), voidRules(), reportRules(), ledgerRules()} {
		for _, r := range rules {
			t.Run(r.name, func(t *testing.T) {
				if r.state == "" {
					r.state = lifecycle.NodeActive
				}
				b := &bench{Subject: s, t: t, started: s.Now()}
				b.node, b.host = s.Register(t, r.state)
				err := r.do(b)
				if r.kind == "" {
					require.NoError(t, err)
					return
				}
				require.Error(t, err)
				require.Equal(t, r.kind, schema.KindOf(err), err)
				require.Equal(t, r.reason, schema.AsError(err).Reason, err)
			})
		}
	}
}

// bench is the node of one rule, with its newest operation.
type bench struct {
	Subject
	t          *testing.T
	node, host string
	started    time.Time // of the newest run
	request    activities.ClaimRequest
	fence      activities.Fence
	step       int64
}

// claim claims the node for an action.
func (b *bench) claim(a lifecycle.Action, change ...func(*activities.ClaimRequest)) (activities.Claim, error) {
	b.started = b.started.Add(time.Second)
	r := activities.ClaimRequest{WorkflowID: lifecycle.WorkflowID(a, b.host, b.node), RunID: schema.NewID(), RunStartedAt: b.started,
		OperationInput: lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: b.node, Action: a, Actor: "alice", CorrelationID: "c-1"}}
	for _, f := range change {
		f(&r)
	}
	c, err := b.Claim(b.t.Context(), r)
	if err == nil {
		b.request, b.fence = r, c.Fence
	}
	return c, err
}

// drain claims the node for a drain, which must succeed, and returns the fence.
func (b *bench) drain() activities.Fence {
	b.t.Helper()
	_, err := b.claim(lifecycle.ActionDrain)
	require.NoError(b.t, err)
	return b.fence
}

// superseded returns the fence of a drain whose node another one claimed.
func (b *bench) superseded() activities.Fence {
	b.t.Helper()
	f := b.drain()
	b.drain()
	return f
}

// ended returns the fence of a drain that completed.
func (b *bench) ended() activities.Fence {
	b.t.Helper()
	f := b.drain()
	require.NoError(b.t, b.end(f, lifecycle.OperationCompleted))
	return f
}

// abandoned prepares a task of a drain, marks the drain as abandoned and returns its fence
// with the row.
func (b *bench) abandoned(t task.Type) (activities.Fence, activities.TaskRow) {
	b.t.Helper()
	f := b.drain()
	row, err := b.prepare(f, t)
	require.NoError(b.t, err)
	require.NoError(b.t, b.Abandon(f.OperationID, b.request.RunID))
	return f, row
}

// removal returns the fence of a removal whose ledger has a machine that is not released.
func (b *bench) removal() activities.Fence {
	b.t.Helper()
	_, err := b.claim(lifecycle.ActionRemove)
	require.NoError(b.t, err)
	_, err = b.plan(b.fence)
	require.NoError(b.t, err)
	return b.fence
}

func (b *bench) advance(f activities.Fence, a activities.Advance) error {
	b.step++
	a.Phase, a.Step = cmp.Or(a.Phase, lifecycle.PhaseCordon), b.step
	return b.Advance(b.t.Context(), f, b.request.RunID, a)
}

// undoing drains the node and begins the undo.
func (b *bench) undoing() activities.Fence {
	b.t.Helper()
	f := b.drain()
	require.NoError(b.t, b.advance(f, activities.Advance{Phase: lifecycle.PhaseUndoCordon}))
	return f
}

func (b *bench) end(f activities.Fence, s lifecycle.OperationState) error {
	return b.Finish(b.t.Context(), f, b.request.RunID, activities.Finish{Status: s, Node: lifecycle.NodeDrained, Outcome: "done"})
}

func (b *bench) spec(f activities.Fence, t task.Type) (activities.TaskSpec, task.Owner) {
	spec := activities.TaskSpec{OperationID: f.OperationID, OpSeq: f.OpSeq, NodeID: f.NodeID, Step: string(t), Type: t, Deadline: b.Now().Add(time.Hour)}
	return spec, task.Owner{WorkflowID: b.request.WorkflowID, RunID: b.request.RunID, ActivityID: string(t)}
}

// prepareIn prepares a task of a phase.
func (b *bench) prepareIn(phase string, f activities.Fence, t task.Type) (activities.TaskRow, error) {
	spec, o := b.spec(f, t)
	spec.Phase = phase
	return b.Prepare(b.t.Context(), spec, o)
}

func (b *bench) prepare(f activities.Fence, t task.Type) (activities.TaskRow, error) {
	spec, owner := b.spec(f, t)
	return b.Prepare(b.t.Context(), spec, owner)
}

// enqueue stores the task of a step and returns its ID.
func (b *bench) enqueue(f activities.Fence, t task.Type) string {
	b.t.Helper()
	row, err := b.prepare(f, t)
	require.NoError(b.t, err)
	require.NoError(b.t, b.store(f, t, row))
	return row.TaskID
}

func (b *bench) store(f activities.Fence, t task.Type, row activities.TaskRow) error {
	spec, owner := b.spec(f, t)
	return b.Enqueue(b.t.Context(), spec, owner, row, []byte(`{}`))
}

func (b *bench) find(f activities.Fence, t task.Type) (activities.TaskRow, error) {
	spec, _ := b.spec(f, t)
	return b.Find(b.t.Context(), spec)
}

// plan plans a machine of the operation and returns its ID.
func (b *bench) plan(f activities.Fence) (string, error) {
	id := lifecycle.ResourceID(f.OperationID, "instance")
	_, err := b.Plan(b.t.Context(), f, activities.Resource{ResourceID: id, NodeID: f.NodeID, Kind: "instance", Provider: "manual", State: activities.ResourcePlanned})
	return id, err
}

// must returns err, or an error that names what does not hold.
func must(err error, holds bool, what string) error {
	if err == nil && !holds {
		return errors.New(what)
	}
	return err
}
