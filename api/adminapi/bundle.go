package adminapi

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// bootstrapScript answers with a script that installs the agent on the node's
// host. Like a bundle it belongs to an operation: the enrollment or reissue that
// waits for one, or a new one. Its token voids the one before.
func (a *API) bootstrapScript(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
	var req wire.BootstrapScriptRequest
	if err := edge.DecodeOptional(w, r, &req); err != nil {
		return err
	}
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	node, err := a.find(r)
	if err != nil {
		return err
	}
	bundle, err := a.trust(r.Context())
	if err != nil {
		return err
	}
	if bundle.Package == nil {
		return schema.NewError(schema.KindInvalidRequest, "no agent package is configured, so there is nothing to install").
			WithReason("no_package").WithNext("set GPUAAS_AGENT_OCI_REF or GPUAAS_AGENT_ARCHIVE of gpuaas-api")
	}
	in, err := a.bundleOperation(r.Context(), node, key, by)
	if err != nil {
		return err
	}
	answer, err := a.script(r.Context(), in, bundle, req.FetchRef, by)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer)
}

// bundleOperation finds the operation of the node that waits for a bundle, or
// starts one.
func (a *API) bundleOperation(ctx context.Context, node wire.NodeView, key string, by audit.Subject) (lifecycle.OperationInput, error) {
	action := lifecycle.ActionReissueEnrollment
	if node.State == lifecycle.NodeRegistered || node.Operation != nil && node.Operation.Action == lifecycle.ActionEnroll {
		action = lifecycle.ActionEnroll
	}
	in := operationInput(action, node, wire.LifecycleRequest{}, key, by)
	open, err := a.openOperations(ctx, node.ID)
	if err != nil {
		return in, err
	}
	i := slices.IndexFunc(open, func(o wire.OperationSummary) bool { return o.Action == action })
	if i >= 0 {
		in.OperationID = open[i].OperationID
	} else {
		op, err := a.cfg.Lifecycle.Submit(ctx, in)
		if err != nil {
			return in, err
		}
		in.OperationID = op.OperationID
	}
	edge.Annotate(ctx, slog.String("operation_id", in.OperationID))
	return in, nil
}

// script makes the token, or the reference that makes it later, and the script
// that contains it.
func (a *API) script(ctx context.Context, in lifecycle.OperationInput, bundle trust.BootstrapBundle, fetch bool, by audit.Subject) (wire.BootstrapScriptResponse, error) {
	var none wire.BootstrapScriptResponse
	reference := ""
	if fetch {
		text, m := minted(in.NodeID, purposeOf(in.Action))
		if err := a.cfg.Store.IssueFetch(ctx, m, by); err != nil {
			return none, err
		}
		reference, bundle.NodeID, bundle.ExpiresAt = text, in.NodeID, m.ExpiresAt.Format(time.RFC3339)
	} else if err := a.mint(ctx, in, by, &bundle); err != nil {
		return none, err
	}
	s := newScript(in.Host, bundle)
	s.Reference = reference
	text, err := s.render("bootstrap.sh.tmpl")
	if err != nil {
		return none, err
	}
	expires, err := time.Parse(time.RFC3339, bundle.ExpiresAt)
	if err != nil {
		return none, schema.Wrap(schema.KindInternal, err, "reading the token's end")
	}
	return wire.BootstrapScriptResponse{Script: text, ExpiresAt: expires}, nil
}

// Fetch implements nodeapi.Bundles. Trust is read first, so that a reference is
// not spent on a bundle that cannot be made.
func (a *API) Fetch(ctx context.Context, reference string, by audit.Subject) (trust.BootstrapBundle, error) {
	var none trust.BootstrapBundle
	id, hash, err := trust.ParseToken(reference)
	if err != nil {
		return none, schema.NewError(schema.KindUnauthenticated, "malformed reference").WithReason("reference_malformed")
	}
	bundle, err := a.trust(ctx)
	if err != nil {
		return none, err
	}
	nodeID, purpose, err := a.cfg.Store.UseFetch(ctx, id, hash, by)
	if err != nil {
		return none, err
	}
	if err := a.issueInto(ctx, nodeID, purpose, by, &bundle); err != nil {
		return none, err
	}
	return bundle, nil
}
