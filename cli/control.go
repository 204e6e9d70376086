package cli

import (
	"context"
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// control is how commands find nodes and start, read and decide operations:
// through the admin API, or with --direct through Temporal alone.
type control interface {
	// find resolves NODE, an id or a host name.
	find(ctx context.Context, arg string) (target, error)
	// start starts the verb's operation.
	start(ctx context.Context, t target, v verb, o lifecycleOptions) (lifecycle.Operation, error)
	// status reads an operation, newest the node's newest operation that holds it,
	// or its newest reissue. KindNotFound when there is none.
	status(ctx context.Context, op lifecycle.Operation) (lifecycle.OperationStatus, error)
	newest(ctx context.Context, t target, reissue bool) (lifecycle.OperationStatus, error)
	// decide delivers a decision about the operation as it was read.
	decide(ctx context.Context, st lifecycle.OperationStatus, d lifecycle.Decision, reason, key string) (lifecycle.OperationStatus, error)
	// stuck lists what needs attention, oldest first.
	stuck(ctx context.Context) (wire.StuckList, error)
	// changes tells of changed operations until ctx ends, of all nodes when nodeID
	// is empty. Nil where there are no events; closed where they ended.
	changes(ctx context.Context, nodeID string) <-chan struct{}
}

// control returns the control that the flags ask for.
func (e *env) control(ctx context.Context) (control, error) {
	if e.flags.direct {
		lc, err := e.lifecycle(ctx)
		return directControl{e, lc}, err
	}
	api, err := e.api()
	return apiControl{api}, err
}

// apiControl asks the admin API.
type apiControl struct{ api *adminAPI }

func (c apiControl) find(ctx context.Context, arg string) (target, error) {
	view, err := c.api.node(ctx, arg)
	return target{id: view.ID, host: view.Host, view: &view}, err
}

func (c apiControl) start(ctx context.Context, t target, v verb, o lifecycleOptions) (lifecycle.Operation, error) {
	response, err := c.api.act(ctx, t.id, v.action, wire.LifecycleRequest{Reason: o.reason, Options: v.options}, o.key)
	return response.Operation, err
}

func (c apiControl) status(ctx context.Context, op lifecycle.Operation) (lifecycle.OperationStatus, error) {
	view, err := c.api.operation(ctx, op.OperationID)
	return view.Status(), err
}

func (c apiControl) newest(ctx context.Context, t target, reissue bool) (lifecycle.OperationStatus, error) {
	ops, err := c.api.operations(ctx, adminclient.ListOperationsParams{Node: &t.id, Holds: new(!reissue)}, 1)
	if err != nil {
		return lifecycle.OperationStatus{}, err
	}
	if len(ops) == 0 {
		return lifecycle.OperationStatus{}, schema.Errorf(schema.KindNotFound, "no operation on %s", t.name())
	}
	return c.status(ctx, lifecycle.Operation{OperationID: ops[0].OperationID})
}

func (c apiControl) decide(ctx context.Context, st lifecycle.OperationStatus, d lifecycle.Decision, reason, key string) (lifecycle.OperationStatus, error) {
	r := wire.ResolveOperation{Reason: reason}
	if s := st.Operation.Stuck; s != nil {
		r.Phase, r.StuckSince = s.Phase, &s.Since
	}
	view, err := c.api.resolve(ctx, st.Operation.OperationID, d, r, key)
	return view.Status(), err
}

func (c apiControl) stuck(ctx context.Context) (wire.StuckList, error) { return c.api.stuck(ctx) }

func (c apiControl) changes(ctx context.Context, nodeID string) <-chan struct{} {
	return c.api.changes(ctx, nodeID)
}

// directControl asks Temporal alone: the break-glass mode. The audit then names
// the actor as this machine asserts it, and the door temporal.
type directControl struct {
	env *env
	lc  Lifecycle
}

// viaTemporal is the door that the audit names for --direct.
const viaTemporal = "temporal"

func (c directControl) find(ctx context.Context, arg string) (target, error) {
	ref, err := c.lc.FindNode(ctx, arg)
	return target{id: ref.NodeID, host: ref.Host}, err
}

func (c directControl) start(ctx context.Context, t target, v verb, o lifecycleOptions) (lifecycle.Operation, error) {
	return c.lc.Submit(ctx, lifecycle.OperationInput{
		OperationID: lifecycle.OperationID(t.id, v.action, o.key), NodeID: t.id, Action: v.action,
		Actor: c.env.actor, Via: viaTemporal, Reason: o.reason, CorrelationID: c.env.correlationID, Host: t.host, Options: v.options,
	})
}

// status asks the run, and where no worker answers for its result: a closed run
// has one.
func (c directControl) status(ctx context.Context, op lifecycle.Operation) (lifecycle.OperationStatus, error) {
	asking, cancel := context.WithTimeout(ctx, statusBudget)
	defer cancel()
	st, err := c.lc.Status(asking, op.WorkflowID, op.RunID)
	if err == nil || ctx.Err() != nil {
		return st, err
	}
	closing, done := context.WithTimeout(ctx, statusBudget)
	defer done()
	if final, resultErr := c.lc.Result(closing, op.WorkflowID, op.RunID); resultErr == nil {
		return final, nil
	}
	return st, err
}

func (c directControl) newest(ctx context.Context, t target, reissue bool) (lifecycle.OperationStatus, error) {
	workflowID := lifecycle.NodeWorkflowID(t.host, t.id)
	if reissue {
		workflowID = lifecycle.ReissueWorkflowID(t.host, t.id)
	}
	return c.status(ctx, lifecycle.Operation{WorkflowID: workflowID})
}

func (c directControl) decide(ctx context.Context, st lifecycle.OperationStatus, d lifecycle.Decision, reason, _ string) (lifecycle.OperationStatus, error) {
	r := lifecycle.ResolveRequest{OperationID: st.Operation.OperationID, Decision: d, Reason: reason, By: c.env.actor, Via: viaTemporal}
	if s := st.Operation.Stuck; s != nil {
		r.Phase, r.StuckSince = s.Phase, &s.Since
	}
	return c.lc.Resolve(ctx, st.Operation.WorkflowID, r)
}

func (c directControl) stuck(ctx context.Context) (wire.StuckList, error) {
	list := wire.StuckList{Stuck: []wire.StuckOperation{}, Faults: []wire.ControlPlaneFault{}}
	parked, err := c.lc.Parked(ctx)
	if err != nil {
		return list, err
	}
	for _, st := range parked {
		list.Stuck = append(list.Stuck, stuckOfStatus(st, c.lc.WebURL(st.Operation.WorkflowID, st.Operation.RunID)))
	}
	switch h, err := c.lc.ReclaimSchedule(ctx); {
	case err != nil:
		e := schema.AsError(err)
		list.Faults = append(list.Faults, wire.ControlPlaneFault{Component: "temporal", Reason: string(e.Kind), Message: e.Message, Next: e.Next})
	case h.State != temporal.ScheduleRuns:
		list.Faults = append(list.Faults, wire.ControlPlaneFault{Component: "reclaimer", Reason: string(h.State), Message: h.Message, Next: h.Next})
	}
	return list, nil
}

func (directControl) changes(context.Context, string) <-chan struct{} { return nil }

func stuckOfStatus(st lifecycle.OperationStatus, webURL string) wire.StuckOperation {
	op := st.Operation
	o := wire.StuckOperation{State: st.Node.State, WebURL: webURL, OperationSummary: wire.OperationSummary{
		OperationID: op.OperationID, NodeID: st.Node.NodeID, Host: st.Node.Host, WorkflowID: op.WorkflowID, RunID: op.RunID, Action: op.Action,
		Status: op.Status, WaitingOn: lifecycle.AttentionOperator, Stuck: op.Stuck, Actor: op.Actor, Reason: op.Reason}}
	if op.StartedAt != nil {
		o.StartedAt = *op.StartedAt
	}
	if op.Stuck != nil {
		o.Phase, o.WaitingOn = op.Stuck.Phase, op.Stuck.WaitingOn
	}
	return o
}

// operationArg is how the op commands name an operation.
type operationArg struct {
	operation string // its id
	reissue   bool
}

// locate finds the operation that NODE and the flags name. NODE may also be the
// operation's id.
func locate(ctx context.Context, ctl control, arg string, o operationArg) (target, lifecycle.OperationStatus, error) {
	t, err := ctl.find(ctx, arg)
	if errors.Is(err, &schema.Error{Kind: schema.KindNotFound}) && schema.IsID(arg) && o.operation == "" {
		if st, statusErr := ctl.status(ctx, lifecycle.Operation{OperationID: arg}); statusErr == nil {
			return target{id: st.Node.NodeID, host: st.Node.Host}, st, nil
		}
	}
	if err != nil {
		return t, lifecycle.OperationStatus{}, err
	}
	st, err := ctl.newest(ctx, t, o.reissue)
	if o.operation == "" || err == nil && st.Operation.OperationID == o.operation {
		return t, st, err
	}
	if st, err = ctl.status(ctx, lifecycle.Operation{OperationID: o.operation, WorkflowID: lifecycle.NodeWorkflowID(t.host, t.id)}); err != nil {
		return t, st, err
	}
	if st.Operation.OperationID != o.operation || st.Node.NodeID != t.id {
		return t, st, schema.NewError(schema.KindDecisionOutdated, "operation %s is not an operation of %s", o.operation, t.name()).
			WithNext("gpuaas op show " + t.name())
	}
	return t, st, nil
}

// budget for look-ups that a command can do without.
const lookupBudget = 3 * time.Second
