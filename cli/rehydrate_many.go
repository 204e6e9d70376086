package cli

import (
	"context"
	"slices"
	"sync"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// runRehydrateMany rehydrates the nodes of all abandoned operations that match.
func runRehydrateMany(ctx context.Context, e *env, o nodeRehydrateOptions) error {
	m := rehydrations{env: e, control: e.apiControl(), options: o, nodes: map[string]func() (lifecycle.Rehydration, error){}}
	return e.runMany(ctx, decideWork{decision: lifecycle.DecisionRehydrate, command: "gpuaas node rehydrate", request: "rehydration",
		matched: "operation", list: m.list, one: m.one}, o.manyOptions, o.yes)
}

// rehydrations is the decideWork of gpuaas node rehydrate.
type rehydrations struct {
	env     *env
	control apiControl
	options nodeRehydrateOptions
	// nodes has the request of each node. A node may have two operations.
	nodes map[string]func() (lifecycle.Rehydration, error)
}

// list returns the abandoned operations that match. While the run watcher marks none as
// run_lost, it includes the open operations that are not marked: the API reads their runs.
func (m rehydrations) list(ctx context.Context) (rows []*decideRow, err error) {
	ops, err := listOperations(ctx, m.control.Client, adminclient.ListOperationsParams{Selector: m.options.selector, Open: new(true)}, 0)
	if err != nil {
		return nil, err
	}
	missing, err := m.runsMissing(ctx)
	if err != nil {
		return nil, err
	}
	for _, op := range ops {
		switch {
		case op.Status == lifecycle.OperationAbandoned && op.Stuck != nil:
			if m.selects(op.Stuck.Reason) {
				rows = append(rows, rowOf(op, lifecycle.DecisionRehydrate, false))
			}
		case missing && m.selects(string(lifecycle.RunLost)):
			rows = append(rows, unmarkedRow(op))
		}
	}
	if len(rows) == 0 {
		return nil, schema.NewError(schema.KindNotFound, "no abandoned operation matches").WithNext("gpuaas stuck")
	}
	for _, r := range rows {
		m.nodes[r.NodeID] = sync.OnceValues(func() (lifecycle.Rehydration, error) {
			return decode[lifecycle.Rehydration](m.control.RehydrateNode(ctx, r.NodeID, nil, adminclient.RehydrateRequest{Reason: given(m.options.reason)}))
		})
	}
	return rows, nil
}

// runsMissing reports whether the run watcher marks none of the operations whose run
// Temporal does not have, and warns about its likely cause.
func (m rehydrations) runsMissing(ctx context.Context) (bool, error) {
	list, err := m.control.stuck(ctx, stuckQuery{limit: 1})
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(list.Faults, func(f wire.ControlPlaneFault) bool {
		return f.Component == lifecycle.ScheduleWatch && f.Reason == lifecycle.ReasonRunsMissing
	})
	if i >= 0 {
		m.env.message("warning: %s", list.Faults[i].Message)
		m.env.message("next:  check TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE of gpuaas-worker and gpuaas-api; continue only if the runs are lost")
	}
	return i >= 0, nil
}

func (m rehydrations) selects(reason string) bool {
	return m.options.reasons == nil || slices.Contains(*m.options.reasons, reason)
}

// unmarkedRow is the row of an open operation whose run may be lost.
func unmarkedRow(op wire.OperationSummary) *decideRow {
	return &decideRow{OperationID: op.OperationID, NodeID: op.NodeID, Host: op.Host, Action: op.Action, Phase: op.Phase,
		StuckReason: lifecycle.ReasonRunsMissing, StuckSince: op.StartedAt, Harm: lifecycle.HarmNone, Outcome: decideNotSent,
		Does: "Record the operation as failed if no run of it is open in Temporal"}
}

// one rehydrates the operation's node, once for all its operations. A repeat is safe.
func (m rehydrations) one(_ context.Context, r *decideRow) (bulkOutcome, error) {
	done, err := m.nodes[r.NodeID]()
	switch {
	case schema.KindOf(err) == schema.KindOperationInProgress:
		return decideRunOpen, nil
	case err != nil:
		return bulkFailed, err
	case !slices.ContainsFunc(done.Ended, func(o lifecycle.EndedOperation) bool { return o.OperationID == r.OperationID }):
		return decideOutdated, nil
	}
	r.Next = done.Next
	return decideRestored, nil
}
