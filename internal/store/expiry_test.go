package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// A token's end is that of its claim: the key that claimed it in time retries
// for as long as it takes, and no other key ever.
func TestClaimOutlivesToken(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	id, hash := e.token(n.ID)
	_, err := e.ClaimToken(ctx, tokenClaim(n.ID, id, hash, "spki-1"))
	require.NoError(t, err)
	e.exec("UPDATE enrollment_tokens SET expires_at = now() - interval '1 day' WHERE token_id = $1", id)
	_, err = e.ClaimToken(ctx, tokenClaim(n.ID, id, hash, "spki-1"))
	require.NoError(t, err, "the same key")
	_, err = e.ClaimToken(ctx, tokenClaim(n.ID, id, hash, "spki-2"))
	requireKind(t, err, schema.KindTokenConsumed, "token_claimed")
}
