package adminapi

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuck lists the operations that need attention, oldest first, and on the first page
// the nodes and requests that do, and the faults of the control plane.
func (o operations) stuck(c *call) (any, error) {
	q := o.query(c)
	of := conditions(q)
	if err := q.check(); err != nil {
		return nil, err
	}
	list := wire.StuckList{Faults: []wire.ControlPlaneFault{}, Nodes: []stuck.Node{}}
	var probes sync.WaitGroup
	var failed error
	if o.Insights != nil && len(of.After) == 0 {
		probes.Go(func() { failed = o.stuckNodes(c.Context(), of, &list) })
	}
	if o.Faults != nil && len(of.After) == 0 {
		probes.Go(func() { list.Faults = append(list.Faults, o.Faults(c.Request)...) })
	}
	ops, next, err := o.Operations.ListStuck(c.Context(), of)
	all := len(ops)
	if err == nil && next != nil {
		all, err = o.Operations.CountStuck(c.Context(), of)
	}
	o.showRunEnds(c.Context(), ops)
	probes.Wait()
	for i, s := range ops {
		ops[i].WebURL = o.webURL(s.WorkflowID, s.RunID)
	}
	list.Stuck, list.More, list.NextPageToken = append([]wire.StuckOperation{}, ops...), max(all-len(ops), 0), pageToken(next)
	return list, cmp.Or(err, failed)
}

// stuckNodes adds the nodes and the requests that match to the list. Requests that are not on
// record have no labels, so a selector excludes them. If Temporal does not respond, that is a fault
// of the list.
func (o operations) stuckNodes(ctx context.Context, of OperationQuery, list *wire.StuckList) error {
	nodes, more, err := o.Insights.ListStuckNodes(ctx, of)
	if err != nil {
		return err
	}
	if o.Unclaimed != nil && len(of.Selector) == 0 {
		ctx, cancel := context.WithTimeout(ctx, faultsBudget)
		defer cancel()
		if waiting, err := o.Unclaimed(ctx); err == nil {
			nodes = append(nodes, waiting...)
		}
	}
	list.MoreNodes = more
	for _, n := range nodes {
		if of.selects(n) {
			list.Nodes = append(list.Nodes, n)
		}
	}
	slices.SortStableFunc(list.Nodes, func(a, b stuck.Node) int { return a.Stuck.Since.Compare(b.Stuck.Since) })
	return nil
}

// selects reports whether the query matches a node or a request. A node without an operation has
// no action.
func (q OperationQuery) selects(n stuck.Node) bool {
	return (q.NodeID == "" || q.NodeID == n.NodeID) &&
		(len(q.Actions) == 0 || slices.Contains(q.Actions, n.Action)) &&
		(len(q.Reasons) == 0 || slices.Contains(q.Reasons, n.Stuck.Reason)) &&
		(len(q.WaitingOn) == 0 || slices.Contains(q.WaitingOn, n.Stuck.WaitingOn))
}

// runsBudget bounds the time to read the runs of a page of stuck operations.
const runsBudget = time.Second

// faultsBudget bounds the time to read the requests that no worker has claimed.
const faultsBudget = 3 * time.Second

// showRunEnds shows the operations whose run ended, and which the run watcher has not
// marked yet, as abandoned: the commands that they parked with no longer work. An
// operation whose run cannot be read stays as it is.
func (o operations) showRunEnds(ctx context.Context, ops []wire.StuckOperation) {
	var open []*wire.StuckOperation
	var runs []lifecycle.Operation
	for i, s := range ops {
		if s.Status != lifecycle.OperationAbandoned {
			open = append(open, &ops[i])
			runs = append(runs, runOf(s.OperationSummary))
		}
	}
	if len(open) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, runsBudget)
	defer cancel()
	ends, errs := o.Lifecycle.RunEnds(ctx, runs)
	missing := 0
	for i, end := range ends {
		if errs[i] == nil && end == lifecycle.RunLost {
			missing++
		}
	}
	for i, s := range open {
		if errs[i] == nil && ends[i] != "" && (ends[i] != lifecycle.RunLost || !lifecycle.TooManyMissing(missing, len(open))) {
			showAbandoned(s, ends[i])
		}
	}
}

// runOf returns what Lifecycle.RunEnds reads of an operation.
func runOf(o wire.OperationSummary) lifecycle.Operation {
	return lifecycle.Operation{OperationID: o.OperationID, WorkflowID: o.WorkflowID, RunID: o.RunID, Action: o.Action}
}

// showAbandoned shows an operation as the run watcher will mark it, without the option to
// restart it, which depends on its options.
func showAbandoned(s *wire.StuckOperation, end lifecycle.RunEnd) {
	plan, _ := lifecycle.PlanOf(s.Action, lifecycle.Options{})
	stuck := plan.Abandoned(lifecycle.NodeRef{NodeID: s.NodeID, Host: s.Host, State: s.State}, s.PriorState, lifecycle.Options{}, end)
	stuck.Phase, stuck.Since, stuck.Options = s.Phase, s.Stuck.Since, stuck.Options[:1]
	s.Status, s.Stuck, s.WaitingOn = lifecycle.OperationAbandoned, &stuck, stuck.WaitingOn
}
