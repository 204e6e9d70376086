package adminapi

import (
	"context"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuck lists the operations that need attention, oldest first, and on the first page
// the faults of the control plane.
func (o operations) stuck(c *call) (any, error) {
	q := o.query(c)
	of := conditions(q)
	if err := q.check(); err != nil {
		return nil, err
	}
	list := wire.StuckList{Faults: []wire.ControlPlaneFault{}}
	var probes sync.WaitGroup
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
	return list, err
}

// runsBudget bounds the time to read the runs of a page of stuck operations.
const runsBudget = time.Second

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
	stuck := plan.Abandoned(lifecycle.NodeRef{NodeID: s.NodeID, Host: s.Host, State: s.State}, s.PriorState, end)
	stuck.Phase, stuck.Since, stuck.Options = s.Phase, s.Stuck.Since, stuck.Options[:1]
	s.Status, s.Stuck, s.WaitingOn = lifecycle.OperationAbandoned, &stuck, stuck.WaitingOn
}
