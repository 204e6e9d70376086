package adminapi

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
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
	return OperationQuery{Page: q.page(2), NodeID: q.node(), Actions: words(q, "action", actions...), Reasons: parkReasons(q),
		WaitingOn: words(q, "waiting_on", lifecycle.AttentionNone, lifecycle.AttentionAgent, lifecycle.AttentionProvider,
			lifecycle.AttentionOperator, lifecycle.AttentionCompensation),
		Selector: q.selector()}
}

// parkReasons reads the filter reason. An operation may park for a reason that
// lifecycle.ParkReasons does not list: the reason of any error.
func parkReasons(q *query) []string {
	reasons := words[string](q, "reason")
	for _, r := range reasons {
		if !reasonForm.MatchString(r) {
			q.fail(badField("reason", "must have the characters of a code such as drain_blocked"))
		}
	}
	return reasons
}

// list lists operations, newest first.
func (o operations) list(c *call) (any, error) {
	q := o.listQuery(c)
	of := conditions(q)
	of.Statuses, of.Open, of.Since = words(q, "status", lifecycle.OperationStates()...), q.flag("open"), q.since()
	if q.values.Has("holds") {
		of.Holds = new(q.flag("holds"))
	}
	return page(q, "operations", of, o.Operations.ListOperations)
}

func (o operations) webURL(workflowID, runID string) string {
	if o.WebURL == nil {
		return ""
	}
	return o.WebURL(workflowID, runID)
}

// show returns the whole status of an operation, and its calls that fail and are retried. It
// needs neither Temporal nor a worker: without Temporal it returns no calls.
func (o operations) show(c *call) (any, error) {
	if err := o.query(c).check(); err != nil {
		return nil, err
	}
	st, err := o.findOperation(c)
	v := o.view(st)
	if err != nil || st.Operation.Status.Ended() || st.Operation.Status == lifecycle.OperationAbandoned {
		return v, err
	}
	if s := st.Operation.Stuck; s != nil && o.Insights != nil {
		if v.ProbableCause, err = o.Insights.Cause(c.Context(), st.Operation.OperationID, s.Since); err != nil {
			return v, err
		}
	}
	ctx, cancel := context.WithTimeout(c.Context(), runsBudget)
	defer cancel()
	if faults, err := o.Lifecycle.RunFaults(ctx, st.Operation); err == nil {
		v.Faults = faults
	}
	return v, nil
}

// evidence shows what is kept of the node's last repair that cured nothing.
func (o operations) evidence(c *call) (any, error) {
	if err := o.query(c).check(); err != nil {
		return nil, err
	}
	node, err := o.find(c)
	if err != nil {
		return nil, err
	}
	return o.Repairs.Evidence(c.Context(), node)
}

func (o operations) view(st lifecycle.OperationStatus) wire.OperationView {
	st.Operation.Phases = append([]lifecycle.Phase{}, st.Operation.Phases...)
	return wire.OperationView{OperationStatus: st, WebURL: o.webURL(st.Operation.WorkflowID, st.Operation.RunID)}
}

// findOperation reads the operation that the path names.
func (o operations) findOperation(c *call) (lifecycle.OperationStatus, error) {
	id, err := c.id("operation_id", "gpuaas op list")
	if err != nil {
		return lifecycle.OperationStatus{}, err
	}
	return o.Operations.Operation(c.Context(), id)
}

// start starts the action's workflow and responds as soon as it is accepted. A
// request with the same idempotency key responds with the same operation as it is
// now, even after it ended.
func (o operations) start(action lifecycle.Action) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.DecodeOptional, func(r *wire.LifecycleRequest) error { return checkLifecycle(action, r) })
		if err != nil {
			return nil, err
		}
		if err := o.mayReplace(c, req.Options); err != nil {
			return nil, err
		}
		node, err := o.find(c)
		if err != nil {
			return nil, err
		}
		in := operationInput(action, node, req, c)
		// The trust is read before anything changes, so that an unavailable Vault
		// changes nothing.
		var bundle trust.BootstrapBundle
		if purposeOf(action) != "" {
			if err = checkScriptHost(node.Host, node.ID); err != nil {
				return nil, err
			}
			if bundle, err = o.bundles.trust(c.Context()); err != nil {
				return nil, err
			}
			bundle.WorkloadDriver = node.WorkloadDriver
		}
		op, err := o.submit(c, in, node)
		if err != nil {
			return nil, err
		}
		edge.Annotate(c.Context(), slog.String("operation_id", op.OperationID))
		c.w.Header().Set("Location", adminPath+"/operations/"+op.OperationID)
		started := wire.LifecycleResponse{Operation: op, Note: o.note(c.Context(), action, node)}
		if purposeOf(action) != "" && !op.Status.Ended() {
			err = o.bundles.add(c.Context(), &started, in, bundle, c.by)
		}
		if err == nil {
			started.Node, err = o.Nodes.Node(c.Context(), node.ID)
		}
		return started, incomplete(err, op, in, c.key)
	}
}

// mayReplace rejects a repair that deletes the node's machine, unless the subject may terminate nodes.
func (b base) mayReplace(c *call, o lifecycle.Options) error {
	if !slices.Contains(o.Recovery.Rungs, recovery.RungReplace) {
		return nil
	}
	_, err := b.authorize(c.Request, trust.RoleAdmin)
	return err
}

// submit starts an operation. If an earlier request with the same idempotency key
// started one, it returns that operation.
func (b base) submit(c *call, in lifecycle.OperationInput, node wire.NodeView) (lifecycle.Operation, error) {
	var unsent error
	op, err := once(c.key, func() (lifecycle.Operation, error) {
		st, err := b.Operations.Operation(c.Context(), in.OperationID)
		return st.Operation, err
	}, func() (lifecycle.Operation, error) {
		if in.Options.AgentVersion != "" {
			if in.Options.Release, unsent = b.Release(in.Options.AgentVersion, architecture(node)); unsent != nil {
				return lifecycle.Operation{}, unsent
			}
		}
		return b.Lifecycle.Submit(c.Context(), in)
	})
	switch {
	case unsent != nil && errors.Is(err, unsent):
		return op, err
	case errors.Is(err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "invalid_state"}):
		return op, nextIn(node, err)
	case schema.KindOf(err) == schema.KindOperationInProgress && waitsForToken(in.Action, node):
		e := *schema.AsError(err)
		e.Message += "; for a new token: gpuaas node bootstrap-script " + node.Host
		return op, &e
	case schema.KindOf(err) == schema.KindOperationInProgress && in.Action == lifecycle.ActionProvision && waitsForAgent(node):
		e := *schema.AsError(err)
		e.Next += "; to end the enrollment: " + lifecycle.DecisionCommand(lifecycle.DecisionCancel, lifecycle.ActionEnroll, node.Host, node.Operation.OperationID)
		return op, &e
	case err != nil:
		return op, unanswered(err, in, c.key)
	case c.key != "" && (op.Reason != in.Reason || !reflect.DeepEqual(op.Options.Requested(), in.Options.Requested())):
		return op, keyInUse("it started operation " + op.OperationID + " with another reason or other options")
	}
	return op, nil
}

// architecture is what the node reported as its architecture; empty if it has not reported yet.
func architecture(node wire.NodeView) string {
	if node.Facts == nil {
		return ""
	}
	return node.Facts.Arch
}

// waitsForToken reports whether the action is rejected because the same action waits for
// the node to use its token. A reissue may run beside the operation that holds the node.
func waitsForToken(a lifecycle.Action, node wire.NodeView) bool {
	if a == lifecycle.ActionReissueEnrollment {
		plan, _ := lifecycle.PlanOf(a, lifecycle.Options{})
		return node.Operation == nil || !plan.ConflictsWith(node.Operation.Action)
	}
	return purposeOf(a) != "" && node.Operation != nil && node.Operation.Action == a
}

// waitsForAgent reports whether an enrollment waits for the first request of the node's agent.
func waitsForAgent(node wire.NodeView) bool {
	return node.Operation != nil && node.Operation.Action == lifecycle.ActionEnroll && node.Operation.Phase == lifecycle.PhaseClaim
}

// nextIn adds to the rejection of an action the actions that can start on the node, or the operation that holds the node in it.
func nextIn(node wire.NodeView, err error) error {
	state := node.StartState()
	switch actions := lifecycle.ActionsIn(state); {
	case len(actions) > 0:
		return withNext(err, "actions that start in state "+string(state)+": "+joined(actions))
	case node.Operation != nil:
		e := *schema.AsError(err)
		e.Message += "; operation " + node.Operation.OperationID + " holds the node"
		return withNext(&e, "gpuaas op show "+node.Host)
	}
	return err
}

// unanswered adds to an error of Lifecycle.Submit after which the operation may run that it may, and how to
// find out. An error that says itself what became of the operation is returned unchanged.
func unanswered(err error, in lifecycle.OperationInput, key string) error {
	kind, reason := schema.KindOf(err), schema.AsError(err).Reason
	if !kind.Info().Retry || kind == schema.KindServiceUnavailable && !lifecycle.MaybeAccepted(reason) {
		return err
	}
	return lookFor(err, "the operation may have been accepted", in, key)
}

// incomplete adds to an error after the start of an operation that it was accepted, and how to find it.
func incomplete(err error, op lifecycle.Operation, in lifecycle.OperationInput, key string) error {
	if err == nil || !schema.KindOf(err).Info().Retry {
		return err
	}
	e := lookFor(err, "operation "+op.OperationID+" was accepted", in, key)
	if e.Kind == schema.KindServiceUnavailable {
		e.Reason = lifecycle.ReasonResponseLost // the message names the service that failed
	}
	return e
}

// lookFor returns the error with what is true of the operation, and with the command that lists it.
func lookFor(err error, accepted string, in lifecycle.OperationInput, key string) *schema.Error {
	e := *schema.AsError(err)
	e.Message += "; " + accepted
	e.Next = "gpuaas op list --node " + in.Host
	if key != "" {
		e.Next = "repeat the request with the same " + wire.HeaderIdempotencyKey + ", or run: " + e.Next
	}
	return &e
}

func operationInput(action lifecycle.Action, node wire.NodeView, req wire.LifecycleRequest, c *call) lifecycle.OperationInput {
	req.Options.Probe = req.Options.Probe || node.Probe && action == lifecycle.ActionEnroll
	provider := node.OnboardingMode
	if node.Instance != nil {
		provider = node.Instance.Provider
	}
	return lifecycle.OperationInput{
		StartWithinSeconds: req.StartWithinSeconds,
		OperationID:        lifecycle.OperationID(node.ID, action, c.by.Actor, c.key), NodeID: node.ID, Action: action,
		Actor: c.by.Actor, Via: c.by.Via, Reason: req.Reason, CorrelationID: c.by.CorrelationID,
		Host: node.Host, Provider: provider, Region: node.RegionCode, Options: req.Options,
	}
}

func checkLifecycle(action lifecycle.Action, r *wire.LifecycleRequest) error {
	o := r.Options
	drains := action == lifecycle.ActionDrain || action == lifecycle.ActionRecover || action == lifecycle.ActionRetire && o.Drain
	switch {
	case o.Drain && action != lifecycle.ActionRetire:
		return badField("options", "drain belongs to retire")
	case o.Force && action != lifecycle.ActionTerminate && action != lifecycle.ActionRemove && (action != lifecycle.ActionRetire || o.Drain):
		return badField("options", "force belongs to terminate, to remove, and to retire without drain")
	case o.Force && strings.TrimSpace(r.Reason) == "":
		return badField("reason", "is required with force: it is kept in the audit trail")
	case o.Probe && action != lifecycle.ActionEnroll:
		return badField("options", "probe belongs to enroll")
	case o.NewIdentity && action != lifecycle.ActionReactivate:
		return badField("options", "new_identity belongs to reactivate")
	case o.CordonOnly && action != lifecycle.ActionDrain:
		return badField("options", "cordon_only belongs to drain")
	case o.DrainTimeoutSeconds != 0 && !drains:
		return badField("options", "drain_timeout_seconds belongs to drain, to retire with drain, and to recover")
	case o.DrainTimeoutSeconds < 0 || o.DrainTimeoutSeconds > int64(wire.MaxDrainDeadline/time.Second):
		return badField("options", "drain_timeout_seconds must be 0 to 604800")
	case action == lifecycle.ActionUpgradeAgent && o.AgentVersion == "":
		return badField("options", "agent_version is required for upgrade-agent")
	case action != lifecycle.ActionUpgradeAgent && (o.AgentVersion != "" || o.Downgrade):
		return badField("options", "agent_version and downgrade belong to upgrade-agent")
	case o.Machine.Given() && action != lifecycle.ActionProvision:
		return badField("options", "machine belongs to provision")
	case !o.Machine.Valid():
		return badField("options", "machine has IDs of at most 64 characters, and at most 16 SSH keys of one line each")
	case action != lifecycle.ActionRecover && !reflect.ValueOf(o.Recovery).IsZero():
		return badField("options", "recovery belongs to recover")
	case lifecycle.CheckRecovery(o.Recovery) != nil:
		return lifecycle.CheckRecovery(o.Recovery)
	case o.Release != "":
		return badField("options", "release is set by the server")
	case r.StartWithinSeconds < 0 || r.StartWithinSeconds > int64(wire.MaxStartWithin/time.Second):
		return badField("start_within_seconds", "must be 0 to 86400")
	}
	return checkReason(r.Reason, false)
}
