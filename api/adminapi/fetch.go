package adminapi

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Bundles exchanges references for bundles. It implements nodeapi.Bundles.
type Bundles struct{ bundles bundles }

// NewBundles returns the exchange. It uses Env, NodeURL, Nodes, EnrollmentTokens, Trust and
// Package of the configuration.
func NewBundles(cfg Config) Bundles { return Bundles{bundles{base{&cfg}}} }

// Fetch implements nodeapi.Bundles.
func (b Bundles) Fetch(ctx context.Context, reference string, by audit.Subject) (trust.BootstrapBundle, error) {
	return b.bundles.fetch(ctx, reference, by)
}

// Script implements nodeapi.Bundles.
func (b Bundles) Script(ctx context.Context, reference string, by audit.Subject) (nodeID, script string, err error) {
	return b.bundles.scriptFor(ctx, reference, by)
}

// parseReference splits a reference into its public ID and the hash of its secret.
func parseReference(reference string) (id string, hash []byte, err error) {
	if id, hash, err = trust.ParseToken(reference); err != nil {
		return "", nil, schema.NewError(schema.KindUnauthenticated, "malformed reference").WithReason("reference_malformed")
	}
	return id, hash, nil
}

// fetch exchanges a one-time reference for its bundle. The trust is read first, so
// that a reference is not spent on a bundle that cannot be made.
func (b bundles) fetch(ctx context.Context, reference string, by audit.Subject) (bundle trust.BootstrapBundle, err error) {
	id, hash, err := parseReference(reference)
	if err != nil {
		return bundle, err
	}
	if bundle, err = b.trust(ctx); err != nil {
		return bundle, err
	}
	nodeID, purpose, err := b.EnrollmentTokens.UseFetch(ctx, id, hash, by)
	if err == nil {
		bundle.WorkloadDriver, err = b.driverOf(ctx, nodeID)
	}
	if err == nil {
		err = b.issue(ctx, nodeID, purpose, by, &bundle)
	}
	if err != nil {
		return trust.BootstrapBundle{}, err
	}
	return bundle, nil
}

// driverOf returns the workload driver that a node is registered with.
func (b bundles) driverOf(ctx context.Context, nodeID string) (string, error) {
	node, err := b.Nodes.Node(ctx, nodeID)
	return node.WorkloadDriver, err
}

// scriptFor returns the script that installs the agent on the node of an unspent reference,
// and does not spend it. The reference is checked first: without one, a client learns nothing
// about this installation.
func (b bundles) scriptFor(ctx context.Context, reference string, by audit.Subject) (nodeID, script string, err error) {
	id, hash, err := parseReference(reference)
	if err != nil {
		return "", "", err
	}
	nodeID, expires, err := b.EnrollmentTokens.CheckFetch(ctx, id, hash, by)
	if err != nil {
		return "", "", err
	}
	node, err := b.Nodes.Node(ctx, nodeID)
	if err != nil {
		return "", "", err
	}
	bundle, err := b.trust(ctx)
	if err == nil {
		err = requirePackage(bundle)
	}
	if err != nil {
		return "", "", err
	}
	bundle.NodeID, bundle.ExpiresAt, bundle.WorkloadDriver = nodeID, expires.UTC().Format(time.RFC3339), node.WorkloadDriver
	script, err = bootstrapScript(node.Host, reference, bundle)
	return nodeID, script, err
}
