package store

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
)

// ClaimRenewal lets an authenticated caller have its next certificate.
func (s *Store) ClaimRenewal(_ context.Context, c schema.RenewClaim) (schema.Claimed, error) {
	return schema.Claimed{}, errUnbuilt("renewal of node " + c.Caller.NodeID)
}

// RecoveryFacts returns what a recovery's signature is checked against.
func (s *Store) RecoveryFacts(_ context.Context, nodeID string) (schema.RecoveryFacts, error) {
	return schema.RecoveryFacts{}, errUnbuilt("recovery of node " + nodeID)
}

// ClaimRecovery claims a recovery token for a key.
func (s *Store) ClaimRecovery(_ context.Context, c schema.RecoveryClaim) (schema.Claimed, error) {
	return schema.Claimed{}, errUnbuilt("recovery of node " + c.NodeID)
}

// IssueFetch stores a one-time reference to a bundle.
func (s *Store) IssueFetch(_ context.Context, t schema.MintedToken, _ schema.Subject) error {
	return errUnbuilt("a fetch reference for node " + t.NodeID)
}

// UseFetch spends a one-time reference.
func (s *Store) UseFetch(context.Context, string, []byte, string) (string, schema.TokenPurpose, error) {
	return "", "", errUnbuilt("a fetch reference")
}

func errUnbuilt(what string) error {
	return schema.Errorf(schema.KindServiceUnavailable, "%s: not built yet", what)
}
