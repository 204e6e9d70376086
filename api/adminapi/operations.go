package adminapi

import (
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// operations serves operations: it starts, lists and shows them and delivers
// decisions to them.
type operations struct {
	base
	bundles bundles
}

// conditions reads the conditions that the lists of operations share.
func conditions(q *query) OperationQuery {
	var actions []lifecycle.Action
	for _, p := range lifecycle.Operations() {
		actions = append(actions, p.Action)
	}
	return OperationQuery{Page: q.page(2), NodeID: q.node(), Actions: words(q, "action", actions...), Reasons: words[string](q, "reason"),
		WaitingOn: words(q, "waiting_on", lifecycle.AttentionNone, lifecycle.AttentionAgent, lifecycle.AttentionProvider,
			lifecycle.AttentionOperator, lifecycle.AttentionCompensation),
		Selector: q.selector()}
}

// list lists operations, newest first.
func (o operations) list(c *call) (any, error) {
	q := o.listQuery(c)
	of := conditions(q)
	of.Statuses, of.Open, of.Since = words[lifecycle.OperationState](q, "status"), q.flag("open"), q.since()
	if q.values.Has("holds") {
		of.Holds = new(q.flag("holds"))
	}
	return page(q, "operations", of, o.Operations.ListOperations)
}

// stuck lists the operations that need attention, oldest first, and the faults of
// the control plane.
func (o operations) stuck(c *call) (any, error) {
	q := o.query(c)
	of := conditions(q)
	if err := q.check(); err != nil {
		return nil, err
	}
	ops, next, err := o.Operations.ListStuck(c.Context(), of)
	if err != nil {
		return nil, err
	}
	for i, s := range ops {
		ops[i].WebURL = o.webURL(s.WorkflowID, s.RunID)
	}
	list := wire.StuckList{Stuck: append([]wire.StuckOperation{}, ops...), Faults: []wire.ControlPlaneFault{}, NextPageToken: pageToken(next)}
	if o.Faults != nil {
		list.Faults = append(list.Faults, o.Faults(c.Request)...)
	}
	return list, nil
}

func (o operations) webURL(workflowID, runID string) string {
	if o.WebURL == nil {
		return ""
	}
	return o.WebURL(workflowID, runID)
}

// show returns the whole status of an operation. It needs neither Temporal nor a
// worker.
func (o operations) show(c *call) (any, error) {
	if err := o.query(c).check(); err != nil {
		return nil, err
	}
	st, err := o.findOperation(c)
	return o.view(st), err
}

func (o operations) view(st lifecycle.OperationStatus) wire.OperationView {
	st.Operation.Phases = append([]lifecycle.Phase{}, st.Operation.Phases...)
	return wire.OperationView{OperationStatus: st, WebURL: o.webURL(st.Operation.WorkflowID, st.Operation.RunID)}
}

// findOperation reads the operation that the path names.
func (o operations) findOperation(c *call) (lifecycle.OperationStatus, error) {
	id, err := c.id("operation_id")
	if err != nil {
		return lifecycle.OperationStatus{}, err
	}
	return o.Operations.Operation(c.Context(), id)
}

// resolve delivers a decision to an operation and returns its status after the
// decision. The id of the decision derives from the subject and the idempotency
// key, so that Temporal delivers it once.
func (o operations) resolve(d lifecycle.Decision) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.DecodeOptional, func(d *wire.ResolveOperation) error { return checkReason(d.Reason, true) })
		if err != nil {
			return nil, err
		}
		key, err := c.idempotencyKey()
		if err != nil {
			return nil, err
		}
		st, err := o.findOperation(c)
		if err != nil {
			return nil, err
		}
		op, node := st.Operation, st.Node
		if op.Status.Ended() {
			return nil, schema.NewError(schema.KindDecisionOutdated, "operation %s is %s: there is nothing to decide", op.OperationID, op.Status).
				WithReason("operation_over").WithNext("gpuaas op show " + node.Host)
		}
		st, err = o.Lifecycle.Resolve(c.Context(), op.WorkflowID, lifecycle.ResolveRequest{
			ID: lifecycle.DecisionID(op.OperationID, d, c.by.Actor, key), OperationID: op.OperationID, Phase: req.Phase, StuckSince: req.StuckSince,
			Decision: d, Reason: req.Reason, By: c.by.Actor, Via: c.by.Via})
		st.Node.NodeID, st.Node.Host = node.NodeID, node.Host
		return o.view(st), err
	}
}

// start starts the action's workflow and responds as soon as it is accepted. The
// same idempotency key again attaches to the same operation.
func (o operations) start(action lifecycle.Action) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.DecodeOptional, func(r *wire.LifecycleRequest) error { return checkLifecycle(action, r) })
		if err != nil {
			return nil, err
		}
		key, err := c.idempotencyKey()
		if err != nil {
			return nil, err
		}
		node, err := o.find(c)
		if err != nil {
			return nil, err
		}
		in := operationInput(action, node, req, key, c.by)
		// The trust is read before anything changes, so that an unavailable Vault
		// changes nothing.
		var bundle trust.BootstrapBundle
		if purposeOf(action) != "" {
			if bundle, err = o.bundles.trust(c.Context()); err != nil {
				return nil, err
			}
		}
		op, err := o.Lifecycle.Submit(c.Context(), in)
		if err != nil {
			return nil, err
		}
		edge.Annotate(c.Context(), slog.String("operation_id", op.OperationID))
		if key != "" && op.Reason != in.Reason {
			return nil, keyInUse("it started operation " + op.OperationID + " with another reason")
		}
		started := wire.LifecycleResponse{Operation: op}
		if purposeOf(action) != "" {
			if err := o.bundles.add(c.Context(), &started, in, bundle, c.by); err != nil {
				return nil, err
			}
		}
		if started.Node, err = o.Nodes.Node(c.Context(), node.ID); err != nil {
			return nil, err
		}
		c.w.Header().Set("Location", adminPath+"/operations/"+op.OperationID)
		return started, nil
	}
}

func operationInput(action lifecycle.Action, node wire.NodeView, req wire.LifecycleRequest, key string, by audit.Subject) lifecycle.OperationInput {
	provider := node.OnboardingMode
	if node.Instance != nil {
		provider = node.Instance.Provider
	}
	return lifecycle.OperationInput{
		OperationID: lifecycle.OperationID(node.ID, action, key), NodeID: node.ID, Action: action,
		Actor: by.Actor, Via: by.Via, Reason: req.Reason, CorrelationID: by.CorrelationID,
		Host: node.Host, Provider: provider, Region: node.RegionCode, Options: req.Options,
	}
}

func checkLifecycle(action lifecycle.Action, r *wire.LifecycleRequest) error {
	o := r.Options
	drains := action == lifecycle.ActionDrain || action == lifecycle.ActionRetire && o.Drain
	switch {
	case o.Drain && action != lifecycle.ActionRetire:
		return badField("options", "drain belongs to retire")
	case o.CordonOnly && action != lifecycle.ActionDrain:
		return badField("options", "cordon_only belongs to drain")
	case o.DrainTimeoutSeconds != 0 && !drains:
		return badField("options", "drain_timeout_seconds belongs to drain, and to retire with drain")
	case o.DrainTimeoutSeconds < 0 || o.DrainTimeoutSeconds > int64(wire.MaxDrainDeadline/time.Second):
		return badField("options", "drain_timeout_seconds must be 0 to 604800")
	}
	return checkReason(r.Reason, false)
}
