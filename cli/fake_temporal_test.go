package cli

import (
	"context"
	"strings"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// fakeTemporal is a Lifecycle that answers what a test says.
type fakeTemporal struct {
	dialled temporal.Config
	down    bool // refuses every call as unreachable
	// submitted and resolved are what came in.
	submitted []lifecycle.OperationInput
	resolved  []lifecycle.ResolveRequest
	submitErr error
	// queried are the workflow ids of the calls of Status.
	queried []string
	// statuses are the answers of Status in turn; the last one repeats.
	statuses  []lifecycle.OperationStatus
	statusErr error
	// terminated is a run that was reset.
	terminated string
	result     *lifecycle.OperationStatus
	runEnd     lifecycle.RunEnd
	runFaults  []wire.ControlPlaneFault
	// reissue answers for every reissue, in place of statuses.
	reissue *lifecycle.OperationStatus
	// reissueOf is reissue by workflow id.
	reissueOf func(workflowID string) lifecycle.OperationStatus
	// decidedOn is the workflow of the last decision.
	decidedOn string
	resolve   func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error)
	// first are the responses to earlier decisions, by the decision's id.
	first  map[string]lifecycle.OperationStatus
	parked []lifecycle.OperationStatus
	// truncated is set when parked is not all.
	truncated bool
	// described is what Temporal returns without a worker.
	described *lifecycle.OperationStatus
	faults    []wire.ControlPlaneFault
	hosts     map[string]string
}

func newFakeTemporal() *fakeTemporal {
	return &fakeTemporal{hosts: map[string]string{}}
}

func (f *fakeTemporal) unreachable() error {
	return schema.NewError(schema.KindServiceUnavailable, "Temporal at temporal.test:7233 does not answer").
		WithReason("temporal_unreachable").WithNext("check TEMPORAL_ADDRESS, or run: gpuaas dev status")
}

func noWorker() error {
	return schema.NewError(schema.KindServiceUnavailable, "no worker answers at temporal.test:7233").WithReason("no_worker")
}

func (f *fakeTemporal) Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	if f.down {
		return lifecycle.Operation{}, f.unreachable()
	}
	if ctx.Err() != nil {
		return lifecycle.Operation{}, f.unreachable()
	}
	f.submitted = append(f.submitted, in)
	if f.submitErr != nil {
		return lifecycle.Operation{}, f.submitErr
	}
	return operation(in.Action, lifecycle.OperationAccepted), nil
}

func (f *fakeTemporal) Described(_ context.Context, workflowID string) (lifecycle.OperationStatus, error) {
	if f.described == nil {
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "no run of %s is open", workflowID)
	}
	return *f.described, nil
}

func (f *fakeTemporal) Status(_ context.Context, workflowID, run string) (lifecycle.OperationStatus, error) {
	f.queried = append(f.queried, workflowID)
	isReissue := strings.HasSuffix(workflowID, ":reissue")
	switch {
	case f.down:
		return lifecycle.OperationStatus{}, f.unreachable()
	case isReissue && f.reissueOf != nil:
		return f.reissueOf(workflowID), nil
	case isReissue && f.reissue != nil:
		return *f.reissue, nil
	case isReissue:
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "workflow not found")
	case f.terminated != "" && f.terminated == run:
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindServiceUnavailable, "run %s was reset", run).WithReason("run_terminated")
	case f.statusErr != nil:
		return lifecycle.OperationStatus{}, f.statusErr
	case len(f.statuses) == 0:
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "workflow not found")
	}
	st := f.statuses[0]
	if len(f.statuses) > 1 {
		f.statuses = f.statuses[1:]
	}
	return st, nil
}

func (f *fakeTemporal) Resolve(_ context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	if f.down {
		return lifecycle.OperationStatus{}, f.unreachable()
	}
	f.resolved, f.decidedOn = append(f.resolved, r), workflowID
	if f.resolve == nil {
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "delivering the decision")
	}
	return f.resolve(r)
}

func (f *fakeTemporal) Resolved(_ context.Context, _, _ string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	st, ok := f.first[r.ID]
	if !ok {
		return st, schema.NewError(schema.KindNotFound, "no such decision")
	}
	return st, nil
}

func (f *fakeTemporal) Parked(context.Context) ([]lifecycle.OperationStatus, bool, error) {
	if f.down {
		return nil, false, f.unreachable()
	}
	return f.parked, !f.truncated, nil
}

func (f *fakeTemporal) RunEnd(context.Context, lifecycle.Operation) (lifecycle.RunEnd, error) {
	return f.runEnd, nil
}

func (f *fakeTemporal) RunFaults(context.Context, lifecycle.Operation) ([]wire.ControlPlaneFault, error) {
	if f.down {
		return nil, f.unreachable()
	}
	return f.runFaults, nil
}

func (f *fakeTemporal) Faults(context.Context) []wire.ControlPlaneFault { return f.faults }

func (f *fakeTemporal) FindNode(_ context.Context, name string) (lifecycle.NodeRef, error) {
	if f.down {
		return lifecycle.NodeRef{}, f.unreachable()
	}
	for host, id := range f.hosts {
		if name == host || name == id {
			return lifecycle.NodeRef{NodeID: id, Host: host}, nil
		}
	}
	return lifecycle.NodeRef{}, schema.NewError(schema.KindNotFound, "Temporal retains no operation of node %q", name)
}

func (f *fakeTemporal) Result(context.Context, string, string) (lifecycle.OperationStatus, error) {
	if f.down || f.result == nil {
		return lifecycle.OperationStatus{}, f.unreachable()
	}
	return *f.result, nil
}

func (f *fakeTemporal) WebURL(workflowID, runID string) string {
	return "http://web.test/" + workflowID + "/" + runID
}

func (f *fakeTemporal) Close() {}
