package audit_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
)

func TestCheckpointText(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	body := audit.CheckpointBody{Number: 7, Prev: strings.Repeat("ab", 32), Heads: []audit.Head{{Stream: "system", Seq: 3, Hash: "h"}}}
	_, hash, err := body.Encode()
	require.NoError(t, err)
	c := audit.Checkpoint{Env: "test", Number: body.Number, Hash: hash, At: time.Unix(1_800_000_000, 0).UTC(), KeyID: "audit-test.v1"}
	c.Signature = ed25519.Sign(private, c.Signed())
	keys := map[string]ed25519.PublicKey{c.KeyID: public}

	parsed, err := audit.ParseCheckpoint(c.String())
	require.NoError(t, err)
	require.Equal(t, c, parsed)
	require.True(t, parsed.Verify("test", keys))
	require.False(t, parsed.Verify("prod", keys))
	require.False(t, parsed.Verify("test", nil))
	for _, change := range []func(*audit.Checkpoint){
		func(c *audit.Checkpoint) { c.Number++ },
		func(c *audit.Checkpoint) { c.Hash = strings.Repeat("00", 32) },
		func(c *audit.Checkpoint) { c.At = c.At.Add(time.Second) },
		func(c *audit.Checkpoint) { c.Env = "prod" },
		func(c *audit.Checkpoint) { c.KeyID = "audit-test.v2" },
	} {
		forged := c
		change(&forged)
		again, err := audit.ParseCheckpoint(forged.String())
		require.NoError(t, err)
		require.False(t, again.Verify(again.Env, keys))
	}
	for _, bad := range []string{"", "1", c.String() + " ", " " + c.String(), strings.Replace(c.String(), " 7 ", " 07 ", 1),
		strings.Replace(c.String(), " 7 ", " -7 ", 1), strings.Replace(c.String(), hash, hash[2:], 1), c.String() + strings.Repeat("A", audit.MaxCheckpointText)} {
		_, err := audit.ParseCheckpoint(bad)
		require.Error(t, err, bad)
	}
}
