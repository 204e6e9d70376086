package adminapi

import (
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// trust returns a bundle with everything but the node and its token.
func (a *API) trust(ctx context.Context) (trust.BootstrapBundle, error) {
	serverCA, err := a.cfg.Trust.ServerCA(ctx)
	if err != nil {
		return trust.BootstrapBundle{}, err
	}
	nodeCA, err := a.cfg.Trust.NodeCA(ctx)
	if err != nil {
		return trust.BootstrapBundle{}, err
	}
	tasks, err := a.cfg.Trust.TaskTrust(ctx)
	if err != nil {
		return trust.BootstrapBundle{}, err
	}
	var agent *trust.AgentPackage
	if a.cfg.Package != nil {
		if agent, err = a.cfg.Package(); err != nil {
			return trust.BootstrapBundle{}, err
		}
	}
	return trust.BootstrapBundle{
		Package:              agent,
		APIURL:               a.cfg.NodeURL,
		Env:                  a.cfg.Env,
		TaskSigningPubkeys:   tasks.String(),
		CABundlePath:         trust.DefaultCABundlePath,
		NodeCertCABundlePath: trust.DefaultNodeCABundlePath,
		CertPath:             trust.DefaultCertPath,
		KeyPath:              trust.DefaultKeyPath,
		CABundlePEM:          serverCA,
		CABundleFingerprint:  trust.Fingerprint(serverCA),
		NodeCertCABundlePEM:  nodeCA,
	}, nil
}

// purposeOf is the purpose of the token that an action hands out; "" for one that
// hands out none.
func purposeOf(a lifecycle.Action) trust.TokenPurpose {
	switch a {
	case lifecycle.ActionEnroll:
		return trust.PurposeEnroll
	case lifecycle.ActionReissueEnrollment:
		return trust.PurposeReissue
	}
	return ""
}

// mint makes the operation's token and puts it into the bundle. The token exists
// in this call and its response only. A repeated request for the operation that
// waits for its bundle voids the token before; an operation that ended gives none.
func (a *API) mint(ctx context.Context, in lifecycle.OperationInput, by audit.Subject, bundle *trust.BootstrapBundle) error {
	open, err := a.openOperations(ctx, in.NodeID)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(open, func(o wire.OperationSummary) bool { return o.OperationID == in.OperationID }) {
		return schema.NewError(schema.KindInvalidRequest, "operation %s ended: it gives a bundle only while it runs", in.OperationID).
			WithReason("operation_over").WithNext("gpuaas node " + string(in.Action) + " " + in.Host)
	}
	return a.issueInto(ctx, in.NodeID, purposeOf(in.Action), by, bundle)
}

// openOperations are the operations of a node that did not end.
func (a *API) openOperations(ctx context.Context, nodeID string) ([]wire.OperationSummary, error) {
	ops, _, err := a.cfg.Views.ListOperations(ctx, OperationQuery{Page: Page{Limit: wire.MaxPage}, NodeID: nodeID, Open: true})
	return ops, err
}

// issueInto mints a token and puts it into the bundle.
func (a *API) issueInto(ctx context.Context, nodeID string, purpose trust.TokenPurpose, by audit.Subject, bundle *trust.BootstrapBundle) error {
	text, m := minted(nodeID, purpose)
	if err := a.cfg.Store.IssueToken(ctx, m, by); err != nil {
		return err
	}
	bundle.NodeID, bundle.EnrollmentToken, bundle.ExpiresAt = nodeID, text, m.ExpiresAt.Format(time.RFC3339)
	return nil
}

func minted(nodeID string, purpose trust.TokenPurpose) (text string, m trust.MintedToken) {
	text, id, hash := trust.NewToken()
	return text, trust.MintedToken{NodeID: nodeID, TokenID: id, Hash: hash, Purpose: purpose,
		ExpiresAt: time.Now().Add(trust.TokenTTL).UTC().Truncate(time.Second)}
}
