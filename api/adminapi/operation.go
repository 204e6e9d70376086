package adminapi

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// operationQuery reads the conditions that operations and stuck share.
func (a *API) operationQuery(r *http.Request, p *params) (OperationQuery, error) {
	q := OperationQuery{Page: p.page(2), Actions: closed(p, "action", operationActions()),
		WaitingOn: closed(p, "waiting_on", attentions()), Reasons: p.list("reason"), Selector: p.selector()}
	node := p.one("node")
	if err := p.err; err != nil || node == "" {
		return q, err
	}
	var err error
	q.NodeID, err = a.nodeID(r, node)
	return q, err
}

func operationActions() []lifecycle.Action {
	var actions []lifecycle.Action
	for _, p := range lifecycle.Operations() {
		actions = append(actions, p.Action)
	}
	return actions
}

func attentions() []lifecycle.Attention {
	return []lifecycle.Attention{lifecycle.AttentionNone, lifecycle.AttentionAgent, lifecycle.AttentionProvider,
		lifecycle.AttentionOperator, lifecycle.AttentionCompensation}
}

// operations lists operations, newest first.
func (a *API) operations(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	p := readParams(r.URL)
	q, err := a.operationQuery(r, p)
	if err != nil {
		return err
	}
	for _, s := range p.list("status") {
		q.Statuses = append(q.Statuses, lifecycle.OperationState(s))
	}
	q.Open, q.Holds, q.Since = p.flag("open"), p.optionalFlag("holds"), p.since(time.Now())
	fields := p.fields()
	if err := p.check(); err != nil {
		return err
	}
	ops, next, err := a.cfg.Views.ListOperations(r.Context(), q)
	if err != nil {
		return err
	}
	return answerList(w, "operations", ops, next, fields)
}

// stuck lists what needs attention, oldest first, and the control plane's faults.
func (a *API) stuck(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	p := readParams(r.URL)
	q, err := a.operationQuery(r, p)
	if err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	ops, next, err := a.cfg.Views.ListStuck(r.Context(), q)
	if err != nil {
		return err
	}
	for i, o := range ops {
		ops[i].WebURL = a.webURL(o.WorkflowID, o.RunID)
	}
	answer := wire.StuckList{Stuck: append([]wire.StuckOperation{}, ops...), Faults: []wire.ControlPlaneFault{}, NextPageToken: pageToken(next)}
	if a.cfg.Faults != nil {
		answer.Faults = append(answer.Faults, a.cfg.Faults(r)...)
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func (a *API) webURL(workflowID, runID string) string {
	if a.cfg.WebURL == nil {
		return ""
	}
	return a.cfg.WebURL(workflowID, runID)
}

// operation shows an operation's whole status. It needs neither Temporal nor a
// worker.
func (a *API) operation(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	if err := readParams(r.URL).check(); err != nil {
		return err
	}
	st, err := a.findOperation(r)
	if err != nil {
		return err
	}
	return a.showOperation(w, st)
}

func (a *API) showOperation(w http.ResponseWriter, st lifecycle.OperationStatus) error {
	if st.Operation.Phases == nil {
		st.Operation.Phases = []lifecycle.Phase{}
	}
	return edge.JSON(w, http.StatusOK, wire.OperationView{Operation: st.Operation, Node: st.Node,
		WebURL: a.webURL(st.Operation.WorkflowID, st.Operation.RunID)})
}

// findOperation reads the operation that the path names.
func (a *API) findOperation(r *http.Request) (lifecycle.OperationStatus, error) {
	id := r.PathValue("operation_id")
	if !schema.IsID(id) {
		return lifecycle.OperationStatus{}, schema.Errorf(schema.KindNotFound, "no such operation")
	}
	edge.Annotate(r.Context(), slog.String("operation_id", id))
	return a.cfg.Views.Operation(r.Context(), id)
}

// resolve delivers a decision to an operation and answers with its status after
// the decision.
func (a *API) resolve(d lifecycle.Decision) handler {
	return func(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
		var req wire.ResolveOperation
		if err := edge.DecodeOptional(w, r, &req); err != nil {
			return err
		}
		if err := checkReason(req.Reason, d.NeedsReason()); err != nil {
			return err
		}
		st, err := a.findOperation(r)
		if err != nil {
			return err
		}
		if st.Operation.Status.Ended() {
			return schema.NewError(schema.KindDecisionOutdated, "operation %s is %s: there is nothing to decide",
				st.Operation.OperationID, st.Operation.Status).WithReason("operation_over").WithNext("gpuaas op show " + st.Node.Host)
		}
		scope := "operations/" + st.Operation.OperationID + "/" + string(d)
		return a.once(r, scope, by, func(result string) error {
			if result != "" { // the decision was delivered before
				return a.showOperation(w, st)
			}
			after, err := a.cfg.Lifecycle.Resolve(r.Context(), st.Operation.WorkflowID, lifecycle.ResolveRequest{
				OperationID: st.Operation.OperationID, Phase: req.Phase, StuckSince: req.StuckSince, Decision: d,
				Reason: req.Reason, By: by.Actor, Via: by.Via})
			if err != nil {
				return err
			}
			after.Node.NodeID, after.Node.Host = st.Node.NodeID, st.Node.Host
			return a.showOperation(w, after)
		})
	}
}

// checkReason refuses a reason that says nothing.
func checkReason(reason string, needed bool) error {
	switch {
	case !plainText(reason, wire.MaxReason):
		return badField("reason", "must be one line of at most 500 characters")
	case needed && strings.TrimSpace(reason) == "":
		return badField("reason", "is required: it is kept in the audit trail")
	case strings.TrimSpace(reason) == "TEXT":
		return badField("reason", "is the placeholder TEXT: give the reason itself")
	}
	return nil
}

// once runs do for the first use of the request's idempotency key in the scope,
// with an empty result. For a repeat do gets the result of the first use. A use
// that failed is forgotten, so that the request can be repeated.
func (a *API) once(r *http.Request, scope string, by audit.Subject, do func(result string) error) error {
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	if key == "" {
		return do("")
	}
	result, fresh, err := a.cfg.Views.UseKey(r.Context(), scope, key, by.Actor)
	if err != nil {
		return err
	}
	if !fresh {
		if result == "" {
			result = "done"
		}
		return do(result)
	}
	if err := do(""); err != nil {
		if drop := a.cfg.Views.DropKey(r.Context(), scope, key); drop != nil {
			a.cfg.Log.Warn("an idempotency key of a failed request stays in use", slog.String("scope", scope), slog.Any("err", drop))
		}
		return err
	}
	return nil
}

// idempotencyKey reads the Idempotency-Key header; empty for none.
func idempotencyKey(r *http.Request) (string, error) {
	values := r.Header.Values(wire.HeaderIdempotencyKey)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || values[0] == "" || !plainText(values[0], wire.MaxIdempotencyKey):
		return "", schema.NewError(schema.KindInvalidRequest, "%s must be given once, as one line of at most 128 characters", wire.HeaderIdempotencyKey).
			WithReason("bad_idempotency_key")
	}
	return values[0], nil
}
