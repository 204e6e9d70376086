package adminapi

import (
	"slices"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// resolve delivers a decision to an operation and returns its status after the
// decision. The id of the decision derives from the subject and the idempotency
// key, so that Temporal delivers it once.
func (o operations) resolve(d lifecycle.Decision) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.DecodeOptional, func(d *wire.ResolveOperation) error { return checkReason(d.Reason, true) })
		if err != nil {
			return nil, err
		}
		st, err := o.findOperation(c)
		if err != nil {
			return nil, err
		}
		op, node := st.Operation, st.Node
		decision := lifecycle.ResolveRequest{ID: lifecycle.DecisionID(op.OperationID, c.by.Actor, c.key), OperationID: op.OperationID,
			Phase: req.Phase, StuckSince: req.StuckSince, Decision: d, Reason: req.Reason, By: c.by.Actor, Via: c.by.Via}
		if err := o.mayApprove(c, op, &decision); err != nil {
			return nil, err
		}
		st, err = o.deliver(c, st, decision)
		st.Node.NodeID, st.Node.Host = node.NodeID, node.Host
		return o.view(st), err
	}
}

// mayApprove rejects the retry that approves the replacement of a machine, unless the subject may
// terminate nodes. Another retry of such a repair is for the phase that was read, so that it does not
// approve what the operation reaches meanwhile.
func (o operations) mayApprove(c *call, op lifecycle.Operation, r *lifecycle.ResolveRequest) error {
	approves := func(p lifecycle.Phase) bool { return p.Name == lifecycle.PhaseApproveReplace }
	if r.Decision != lifecycle.DecisionRetry || !slices.ContainsFunc(op.Phases, approves) {
		return nil
	}
	if r.Phase == "" && op.Stuck != nil {
		r.Phase = op.Stuck.Phase
	}
	if r.Phase != "" && r.Phase != lifecycle.PhaseApproveReplace {
		return nil
	}
	_, err := o.authorize(c.Request, trust.RoleAdmin)
	return err
}

// deliver delivers a decision to the operation's open run. Temporal determines whether there
// is one: an operator may have reset the run of an operation that ended. Without an open run,
// deliver returns the first response to a repeated decision and rejects a new one.
func (o operations) deliver(c *call, read lifecycle.OperationStatus, r lifecycle.ResolveRequest) (st lifecycle.OperationStatus, err error) {
	op := read.Operation
	open := !op.Status.Ended()
	if !open {
		ends, errs := o.Lifecycle.RunEnds(c.Context(), []lifecycle.Operation{op})
		if errs[0] != nil {
			return st, errs[0]
		}
		open = ends[0] == ""
	}
	if open {
		if st, err = o.Lifecycle.Resolve(c.Context(), op.WorkflowID, r); schema.KindOf(err) != schema.KindNotFound {
			return st, o.noteStored(c, r, err)
		}
	}
	if now, err := o.Operations.Operation(c.Context(), op.OperationID); err == nil {
		op = now.Operation
	}
	over := lifecycle.OperationOver(op, read.Node.Host)
	if c.key == "" {
		return st, over
	}
	if st, err = o.Lifecycle.Resolved(c.Context(), op.WorkflowID, op.RunID, r); schema.KindOf(err) == schema.KindNotFound {
		err = over
	}
	return st, err
}

// noteStored audits a cancel that Temporal stored: the run takes it without its subject
// and reason.
func (o operations) noteStored(c *call, r lifecycle.ResolveRequest, err error) error {
	if schema.KindOf(err) != schema.KindServiceUnavailable || schema.AsError(err).Reason != lifecycle.ReasonCancelStored {
		return err
	}
	if failed := o.Operations.NoteStored(c.Context(), r, c.by.CorrelationID); failed != nil {
		e := *schema.AsError(err)
		e.Message += "; the audit trail does not have the decision: " + schema.AsError(failed).Message
		e.Next = "repeat the command when the database responds"
		return &e
	}
	return err
}
