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
	require.False(t, parsed.Verify("test", map[string]ed25519.PublicKey{c.KeyID: public[1:]}), "a server sent a key that is none")
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

// TestNextCheckpoint: a checkpoint follows another one only if its number is higher, its body is what was
// signed, it names the hash of the other one, and its signature is valid.
func TestNextCheckpoint(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	keys := map[string]ed25519.PublicKey{"audit-test.v1": public}
	first := strings.Repeat("ab", 32)
	stored := func(number, signed int64) audit.StoredCheckpoint {
		body, hash, err := audit.CheckpointBody{Number: number, Prev: first}.Encode()
		require.NoError(t, err)
		c := audit.Checkpoint{Env: "test", Number: signed, Hash: hash, At: time.Unix(1_800_000_000, 0).UTC(), KeyID: "audit-test.v1"}
		c.Signature = ed25519.Sign(private, c.Signed())
		return audit.StoredCheckpoint{Body: body, Signed: c.String()}
	}
	good := stored(8, 8)
	body, signed, err := good.Next(7, first, keys)
	require.NoError(t, err)
	require.Equal(t, int64(8), body.Number)
	require.Equal(t, "test", signed.Env)
	_, _, err = stored(9, 9).Next(7, first, keys)
	require.NoError(t, err, "the hash shows that none is missing between them")

	other, _, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		checkpoint audit.StoredCheckpoint
		number     int64
		hash       string
		keys       map[string]ed25519.PublicKey
		want       string
	}{
		"same number":     {good, 8, first, keys, "checkpoint 8 is out of order"},
		"lower number":    {good, 9, first, keys, "checkpoint 8 is out of order"},
		"number of body":  {stored(7, 8), 7, first, keys, "checkpoint 8 is out of order"},
		"changed body":    {audit.StoredCheckpoint{Body: append(good.Body, ' '), Signed: good.Signed}, 7, first, keys, "changed after it was signed"},
		"another before":  {good, 7, strings.Repeat("cd", 32), keys, "does not follow checkpoint 7"},
		"another key":     {good, 7, first, map[string]ed25519.PublicKey{"audit-test.v1": other}, "no valid signature"},
		"unknown key":     {good, 7, first, nil, "no valid signature"},
		"malformed":       {audit.StoredCheckpoint{Body: good.Body, Signed: "1"}, 7, first, keys, "cannot be parsed"},
		"body is no JSON": {audit.StoredCheckpoint{Body: []byte("{"), Signed: good.Signed}, 7, first, keys, "cannot be parsed"},
	} {
		_, _, err := c.checkpoint.Next(c.number, c.hash, c.keys)
		require.ErrorContains(t, err, c.want, name)
	}
}
