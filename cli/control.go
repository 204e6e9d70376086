package cli

import (
	"context"
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// control finds nodes, and starts, reads and decides operations: through the admin
// API, or with --direct through Temporal alone.
type control interface {
	// find resolves NODE, an id or a host name.
	find(ctx context.Context, arg string) (target, error)
	// start starts an operation.
	start(ctx context.Context, t target, a lifecycle.Action, o lifecycleOptions) (lifecycle.Operation, error)
	// status reads an operation. newest reads the node's newest operation that holds
	// it, or its newest reissue; KindNotFound when there is none.
	status(ctx context.Context, op lifecycle.Operation) (wire.OperationView, error)
	newest(ctx context.Context, t target, reissue bool) (wire.OperationView, error)
	// decide delivers a decision about an operation. The caller sets the decision, its
	// reason, and the phase and the park that it is about.
	decide(ctx context.Context, st lifecycle.OperationStatus, r lifecycle.ResolveRequest, key string) (lifecycle.OperationStatus, error)
	// stuck lists the operations that need attention, oldest first.
	stuck(ctx context.Context, q stuckQuery) (wire.StuckList, error)
	// changes signals changed operations until ctx ends, of all nodes when nodeID is
	// empty. Nil where there are no events; closed where they ended.
	changes(ctx context.Context, nodeID string) <-chan struct{}
}

// control returns the control that the flags select.
func (e *env) control() (control, error) {
	if e.flags.direct {
		lc, err := e.lifecycle()
		return directControl{e, lc}, err
	}
	return e.apiControl(), nil
}

func (e *env) apiControl() apiControl { return apiControl{e.api()} }

// apiControl uses the admin API.
type apiControl struct{ *adminclient.Client }

func (c apiControl) find(ctx context.Context, arg string) (target, error) {
	view, err := decode[wire.NodeView](c.GetNode(ctx, arg, nil))
	return target{id: view.ID, host: view.Host, view: &view}, err
}

func (c apiControl) start(ctx context.Context, t target, a lifecycle.Action, o lifecycleOptions) (lifecycle.Operation, error) {
	response, err := act(ctx, c.Client, t.id, a, wire.LifecycleRequest{Reason: o.reason, Options: o.options,
		StartWithinSeconds: int64(o.startWithin / time.Second)}, o.key)
	return response.Operation, err
}

func (c apiControl) status(ctx context.Context, op lifecycle.Operation) (wire.OperationView, error) {
	return decode[wire.OperationView](c.GetOperation(ctx, op.OperationID, nil))
}

func (c apiControl) newest(ctx context.Context, t target, reissue bool) (wire.OperationView, error) {
	ops, err := listOperations(ctx, c.Client, adminclient.ListOperationsParams{Node: &t.id, Holds: new(!reissue)}, 1)
	if err != nil {
		return wire.OperationView{}, err
	}
	if len(ops) == 0 {
		return wire.OperationView{}, schema.NewError(schema.KindNotFound, "no operation on %s", t.name())
	}
	return c.status(ctx, lifecycle.Operation{OperationID: ops[0].OperationID})
}

func (c apiControl) decide(ctx context.Context, st lifecycle.OperationStatus, r lifecycle.ResolveRequest, key string) (lifecycle.OperationStatus, error) {
	body := wire.ResolveOperation{Reason: r.Reason, Phase: r.Phase, StuckSince: r.StuckSince}
	view, err := decode[wire.OperationView](c.DecideOperation(ctx, st.Operation.OperationID, r.Decision, nil, body, idempotent(key)))
	return view.OperationStatus, err
}

func (c apiControl) stuck(ctx context.Context, q stuckQuery) (all wire.StuckList, err error) {
	p := adminclient.ListStuckParams{Selector: q.selector, Node: q.node, Reason: q.reasons, Action: q.actions}
	all.Faults, all.Nodes = []wire.ControlPlaneFault{}, []stuck.Node{}
	all.Stuck, err = pages(q.limit, func(size *int, token *string) ([]wire.StuckOperation, string, error) {
		p.Limit, p.PageToken = size, token
		list, err := decode[wire.StuckList](c.ListStuck(ctx, &p))
		all.Faults, all.More = append(all.Faults, list.Faults...), list.More
		all.Nodes, all.MoreNodes = append(all.Nodes, list.Nodes...), all.MoreNodes+list.MoreNodes
		return list.Stuck, list.NextPageToken, err
	})
	return all, err
}

func (c apiControl) changes(ctx context.Context, nodeID string) <-chan struct{} {
	return watchEvents(ctx, c.Client, nodeID)
}

// target is the node of a command.
type target struct {
	id   string
	host string // empty when only the id is known
	// view is the node as the admin API returned it; nil with --direct.
	view *wire.NodeView
}

// name is the host name, or the id when that is all that is known.
func (t target) name() string {
	if t.host != "" {
		return t.host
	}
	return t.id
}

// op is a command that works on the node's operation.
func (t target) op(verb string, a lifecycle.Action) string {
	return lifecycle.OpCommand(verb, a, t.name())
}

// ref is what is known of the node without an operation.
func (t target) ref() lifecycle.NodeRef {
	r := lifecycle.NodeRef{NodeID: t.id, Host: t.host}
	if t.view != nil {
		r.State = t.view.State
	}
	return r
}

// workflowID is the workflow id of the node's lifecycle operations, or of its reissues.
func (t target) workflowID(reissue bool) string {
	if reissue {
		return lifecycle.ReissueWorkflowID(t.host, t.id)
	}
	return lifecycle.NodeWorkflowID(t.host, t.id)
}

// locate finds the operation that NODE and the flags name. NODE may also be the
// operation's id. verb is the op command, for the hint of an error.
func locate(ctx context.Context, ctl control, verb, arg string, o operationArg) (target, wire.OperationView, error) {
	t, err := ctl.find(ctx, arg)
	notFound := &schema.Error{Kind: schema.KindNotFound}
	if errors.Is(err, notFound) && schema.IsID(arg) && o.operation == "" {
		if st, statusErr := ctl.status(ctx, lifecycle.Operation{OperationID: arg}); !errors.Is(statusErr, notFound) {
			return target{id: st.Node.NodeID, host: st.Node.Host}, st, statusErr
		}
	}
	if err != nil {
		return t, wire.OperationView{}, err
	}
	st, err := ctl.newest(ctx, t, o.reissue)
	if o.operation != "" && (err != nil || st.Operation.OperationID != o.operation) {
		st, err = ctl.status(ctx, lifecycle.Operation{OperationID: o.operation, WorkflowID: t.workflowID(o.reissue)})
		if err == nil && (st.Operation.OperationID != o.operation || st.Node.NodeID != t.id) {
			err = schema.NewError(schema.KindDecisionOutdated, "operation %s is not an operation of %s", o.operation, t.name()).
				WithNext("gpuaas op show " + t.name())
		}
	}
	if !errors.Is(err, notFound) {
		return t, st, err
	}
	if _, direct := ctl.(directControl); o.operation != "" && !direct {
		action := lifecycle.Action("")
		if o.reissue {
			action = lifecycle.ActionReissueEnrollment
		}
		next := lifecycle.DirectOpCommand("show", action, t.name()) + " --operation " + o.operation
		return t, st, schema.NewError(schema.KindNotFound, "operation %s is not on record: no worker has accepted it yet, or there is none", o.operation).WithNext(next)
	}
	what, next := "operation", "gpuaas node show "+t.name()
	switch {
	case o.reissue:
		what = "reissue"
	case reissueRuns(ctx, ctl, t):
		next = t.op(verb, lifecycle.ActionReissueEnrollment)
	}
	return t, st, schema.NewError(schema.KindNotFound, "no %s has run on %s", what, t.name()).WithNext(next)
}

// reissueRuns reports whether a reissue of the node is known to run.
func reissueRuns(ctx context.Context, ctl control, t target) bool {
	st, err := ctl.newest(ctx, t, true)
	return err == nil && !st.Operation.Status.Ended()
}
