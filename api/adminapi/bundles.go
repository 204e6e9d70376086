package adminapi

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// bundles issues bootstrap bundles and the scripts that contain them. A token
// exists only in the call that creates it and in its response.
type bundles struct{ base }

// purposeOf returns the purpose of the token that an action issues; "" for an
// action that issues none.
func purposeOf(a lifecycle.Action) trust.TokenPurpose {
	switch a {
	case lifecycle.ActionEnroll:
		return trust.PurposeEnroll
	case lifecycle.ActionReissueEnrollment:
		return trust.PurposeReissue
	}
	return ""
}

// trust returns a bundle with everything except the node and its token.
func (b bundles) trust(ctx context.Context) (bundle trust.BootstrapBundle, err error) {
	bundle = trust.BootstrapBundle{APIURL: b.NodeURL, Env: b.Env,
		CABundlePath: trust.DefaultCABundlePath, NodeCertCABundlePath: trust.DefaultNodeCABundlePath,
		CertPath: trust.DefaultCertPath, KeyPath: trust.DefaultKeyPath, ReleasePubkeys: b.ReleaseKeys}
	if bundle.CABundlePEM, err = b.Trust.ServerCA(ctx); err != nil {
		return bundle, err
	}
	bundle.CABundleFingerprint = trust.Fingerprint(bundle.CABundlePEM)
	if bundle.NodeCertCABundlePEM, err = b.Trust.NodeCA(ctx); err != nil {
		return bundle, err
	}
	tasks, err := b.Trust.TaskTrust(ctx)
	if err != nil {
		return bundle, err
	}
	bundle.TaskSigningPubkeys = tasks.String()
	if b.Package != nil {
		if bundle.Package, err = b.Package(); err != nil {
			return bundle, err
		}
	}
	return bundle, checkScript(scriptOf("", "", bundle))
}

// issue mints a token and puts it into the bundle.
func (b bundles) issue(ctx context.Context, nodeID string, purpose trust.TokenPurpose, by audit.Subject, bundle *trust.BootstrapBundle) error {
	text, m, err := b.minted(ctx, nodeID, purpose)
	if err != nil {
		return err
	}
	bundle.NodeID, bundle.EnrollmentToken, bundle.ExpiresAt = nodeID, text, m.ExpiresAt.Format(time.RFC3339)
	return b.EnrollmentTokens.IssueToken(ctx, m, by)
}

// refer issues a reference to a bundle, and puts the node and the expiry into the bundle.
func (b bundles) refer(ctx context.Context, nodeID string, purpose trust.TokenPurpose, by audit.Subject, bundle *trust.BootstrapBundle) (reference string, err error) {
	reference, m, err := b.minted(ctx, nodeID, purpose)
	if err != nil {
		return "", err
	}
	bundle.NodeID, bundle.ExpiresAt = nodeID, m.ExpiresAt.Format(time.RFC3339)
	return reference, b.EnrollmentTokens.IssueFetch(ctx, m, by)
}

// minted makes a token. Its life counts from the database's time: this machine's clock may be wrong.
func (b bundles) minted(ctx context.Context, nodeID string, purpose trust.TokenPurpose) (text string, m trust.MintedToken, err error) {
	expires, err := b.EnrollmentTokens.TokenExpiry(ctx)
	if err != nil {
		return "", m, err
	}
	text, m = trust.Mint(nodeID, purpose, expires)
	return text, m, nil
}

// open returns the node's open operations of the action, without the abandoned ones, which
// wait for no bundle.
func (b bundles) open(ctx context.Context, nodeID string, action lifecycle.Action) ([]wire.OperationSummary, error) {
	open, _, err := b.Operations.ListOperations(ctx, OperationQuery{Page: Page{Limit: wire.MaxPage}, NodeID: nodeID,
		Actions: []lifecycle.Action{action}, Open: true})
	return slices.DeleteFunc(slices.Clone(open), func(o wire.OperationSummary) bool { return o.Status == lifecycle.OperationAbandoned }), err
}

// dead reports whether the operation's run ended without an outcome, and the run watcher
// has not marked the operation yet. It is false if that is not certain.
func (b bundles) dead(ctx context.Context, o wire.OperationSummary) bool {
	ctx, cancel := context.WithTimeout(ctx, runsBudget)
	defer cancel()
	ends, errs := b.Lifecycle.RunEnds(ctx, []lifecycle.Operation{runOf(o)})
	return errs[0] == nil && slices.Contains([]lifecycle.RunEnd{lifecycle.RunTerminated, lifecycle.RunFailed, lifecycle.RunTimedOut}, ends[0])
}

// mint issues the token of an operation into the bundle. A repeated request for an
// open operation voids the previous token; an operation that has ended gets none.
func (b bundles) mint(ctx context.Context, in lifecycle.OperationInput, by audit.Subject, bundle *trust.BootstrapBundle) error {
	open, err := b.open(ctx, in.NodeID, in.Action)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(open, func(o wire.OperationSummary) bool { return o.OperationID == in.OperationID }) {
		return ended(in)
	}
	return b.issue(ctx, in.NodeID, purposeOf(in.Action), by, bundle)
}

func ended(in lifecycle.OperationInput) error {
	return schema.NewError(schema.KindInvalidRequest, "operation %s has ended: it issues a bundle only while it runs", in.OperationID).
		WithReason(lifecycle.ReasonOperationOver).WithNext("gpuaas node " + string(in.Action) + " " + in.Host)
}

// add issues the bundle of an operation that was started, for a reissue with the
// command that applies it.
func (b bundles) add(ctx context.Context, to *wire.LifecycleResponse, in lifecycle.OperationInput, bundle trust.BootstrapBundle, by audit.Subject) error {
	if err := b.mint(ctx, in, by, &bundle); err != nil {
		return err
	}
	if in.Action == lifecycle.ActionEnroll {
		to.BootstrapBundle = &bundle
		return nil
	}
	s, err := newScript(in.Host, "", bundle)
	if err != nil {
		return err
	}
	command, err := s.restartCommand()
	to.RecoveryBundle = &wire.RecoveryBundle{BootstrapBundle: bundle, RestartCommand: command}
	return err
}

// script responds with a script that installs the agent on the node's host. Like a
// bundle it belongs to an operation: the enrollment or reissue that waits for one,
// or a new one. Its token voids the previous one.
func (b bundles) script(c *call) (any, error) {
	ctx := c.Context()
	req, err := body(c, edge.DecodeOptional, func(*wire.BootstrapScriptRequest) error { return nil })
	if err != nil {
		return nil, err
	}
	node, err := b.find(c)
	if err != nil {
		return nil, err
	}
	if err = checkScriptHost(node.Host, node.ID); err != nil {
		return nil, err
	}
	bundle, err := b.trust(ctx)
	if err != nil {
		return nil, err
	}
	bundle.WorkloadDriver = node.WorkloadDriver
	if err = requirePackage(bundle); err != nil {
		return nil, err
	}
	in, err := b.operation(c, node)
	if err != nil {
		return nil, err
	}
	edge.Annotate(ctx, slog.String("operation_id", in.OperationID))
	reference := ""
	if req.FetchRef {
		reference, err = b.refer(ctx, node.ID, purposeOf(in.Action), c.by, &bundle)
	} else {
		err = b.mint(ctx, in, c.by, &bundle)
	}
	if err != nil {
		return nil, err
	}
	text, err := bootstrapScript(node.Host, reference, bundle)
	if err != nil {
		return nil, err
	}
	expires, err := time.Parse(time.RFC3339, bundle.ExpiresAt)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "reading the token's expiry")
	}
	return wire.BootstrapScriptResponse{Script: text, ExpiresAt: expires, Note: b.note(ctx, in.Action, node)}, nil
}

// note says that an enrollment is not the way to a machine that the provider of its node creates. It is
// empty if the providers cannot be read.
func (b base) note(ctx context.Context, a lifecycle.Action, node wire.NodeView) string {
	if a != lifecycle.ActionEnroll || node.State != lifecycle.NodeRegistered {
		return ""
	}
	all, _ := b.Machines.Providers(ctx) // the enrollment has started
	if !slices.ContainsFunc(all, func(p machine.Provider) bool { return p.Name == node.OnboardingMode && p.Creates }) {
		return ""
	}
	return "provider " + node.OnboardingMode + " creates the machine of this node: gpuaas node provision " + node.Host +
		"; an enrollment is for a host of your own"
}

func requirePackage(b trust.BootstrapBundle) error {
	if b.Package != nil {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "no agent package is configured, so there is nothing to install").
		WithReason("no_package").WithNext("set GPUAAS_AGENT_OCI_REF or GPUAAS_AGENT_ARCHIVE of gpuaas-api")
}

// bootstrapScript returns the script that installs the agent on a host with the bundle, or
// with a reference to it.
func bootstrapScript(host, reference string, b trust.BootstrapBundle) (string, error) {
	s, err := newScript(host, reference, b)
	if err != nil {
		return "", err
	}
	return s.render("bootstrap.sh.tmpl")
}

// operation returns the operation of the node that waits for a bundle, and starts
// one if there is none.
func (b bundles) operation(c *call, node wire.NodeView) (lifecycle.OperationInput, error) {
	action := lifecycle.ActionReissueEnrollment
	if !node.State.Enrolled() {
		action = lifecycle.ActionEnroll
	}
	in := operationInput(action, node, wire.LifecycleRequest{}, c)
	// The key of a script is not that of an enrollment or a reissue.
	in.OperationID = lifecycle.OperationID(node.ID, "bootstrap-script", c.by.Actor, c.key)
	open, err := b.open(c.Context(), node.ID, action)
	switch {
	case err != nil:
		return in, err
	case len(open) > 0 && !b.dead(c.Context(), open[0]):
		in.OperationID = open[0].OperationID
		return in, nil
	}
	op, err := b.submit(c, in, node)
	if err == nil && op.Status.Ended() {
		err = ended(in)
	}
	return in, err
}
