package adminapi

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// trust returns a bundle with everything but the node and its token.
func (a *API) trust(ctx context.Context) (schema.BootstrapBundle, error) {
	serverCA, err := a.cfg.Trust.ServerCA(ctx)
	if err != nil {
		return schema.BootstrapBundle{}, err
	}
	nodeCA, err := a.cfg.Trust.NodeCA(ctx)
	if err != nil {
		return schema.BootstrapBundle{}, err
	}
	verifiers, err := a.cfg.Trust.Verifiers(ctx)
	if err != nil {
		return schema.BootstrapBundle{}, err
	}
	return schema.BootstrapBundle{
		APIURL:               a.cfg.NodeURL,
		Env:                  a.cfg.Env,
		TaskSigningPubkeys:   verifiers.String(),
		CABundlePath:         schema.DefaultCABundlePath,
		NodeCertCABundlePath: schema.DefaultNodeCABundlePath,
		CertPath:             schema.DefaultCertPath,
		KeyPath:              schema.DefaultKeyPath,
		CABundlePEM:          serverCA,
		CABundleFingerprint:  schema.Fingerprint(serverCA),
		NodeCertCABundlePEM:  nodeCA,
	}, nil
}

// mint makes the enrolment's token and puts it into the bundle. The token lives
// in this call and its answer only. Asking again for the operation that waits
// for its bundle voids the token before; an operation that is over gives none.
func (a *API) mint(ctx context.Context, in schema.OperationInput, by Subject, bundle *schema.BootstrapBundle) error {
	node, err := a.cfg.Store.Node(ctx, in.NodeID)
	if err != nil {
		return err
	}
	if node.Operation == nil || node.Operation.OperationID != in.OperationID {
		return schema.NewError(schema.KindInvalidRequest, "operation %s is over; an enrolment gives a bundle only while it runs", in.OperationID).
			WithReason("operation_over").WithNext("gpuaas node enroll " + node.Host)
	}
	text, id, hash := schema.NewToken()
	expires := time.Now().Add(schema.TokenTTL).UTC().Truncate(time.Second)
	err = a.cfg.Store.IssueToken(ctx, NewToken{
		NodeID: in.NodeID, TokenID: id, Hash: hash, Purpose: schema.PurposeEnroll, ExpiresAt: expires,
	}, by)
	if err != nil {
		return err
	}
	bundle.NodeID, bundle.EnrollmentToken, bundle.ExpiresAt = in.NodeID, text, expires.Format(time.RFC3339)
	return nil
}
