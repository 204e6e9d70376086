package trust_test

import (
	"crypto/ed25519"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestToken(t *testing.T) {
	t.Parallel()
	text, id, hash := trust.NewToken()
	gotID, gotHash, err := trust.ParseToken(text)
	require.NoError(t, err)
	require.Equal(t, id, gotID)
	require.Equal(t, hash, gotHash)

	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, text[len(text)-1])
	for _, bad := range []string{"", "gpuet_", text[:len(text)-1], text + "x", strings.Replace(text, ".", ":", 1),
		strings.TrimPrefix(text, trust.TokenPrefix), trust.TokenPrefix + id + ".", strings.Replace(text, id, id[1:], 1),
		text[:len(text)-2] + "\n" + text[len(text)-2:], text + "\r\n",
		text[:len(text)-1] + alphabet[last|1:last|1+1]} { // the same bytes in another spelling
		_, _, err := trust.ParseToken(bad)
		require.Equal(t, schema.KindUnauthenticated, schema.KindOf(err), bad)
		require.NotContains(t, err.Error(), id)
	}
}

func FuzzParseToken(f *testing.F) {
	text, _, _ := trust.NewToken()
	f.Add(text)
	f.Add(trust.TokenPrefix + ".")
	f.Fuzz(func(t *testing.T, s string) {
		id, hash, err := trust.ParseToken(s)
		if err != nil {
			require.Equal(t, schema.KindUnauthenticated, schema.KindOf(err))
			return
		}
		require.True(t, schema.IsID(id))
		require.Len(t, hash, 32)
	})
}

func testKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	return public
}

func TestVerifierKeys(t *testing.T) {
	t.Parallel()
	set := trust.VerifierKeys{
		{State: trust.KeyActive, KeyID: "task-dev.v2", Public: testKey(t)}, {State: trust.KeyGrace, KeyID: "task-dev.v1", Public: testKey(t)},
		{State: trust.KeyStaged, KeyID: "task-dev.v3", Public: testKey(t)},
	}
	got, err := trust.ParseTaskTrust(set.String())
	require.NoError(t, err)
	require.Equal(t, trust.TaskTrust{Keys: set}, got)
	require.Len(t, trust.Bundled(got.Keys, trust.VerifierSetRef{}).Accepted(), 2)

	active := set[:1].String()
	for name, bad := range map[string]string{
		"empty":           "",
		"no active key":   set[1:2].String(),
		"two active keys": active + "," + strings.Replace(active, "v2", "v9", 1),
		"a key id twice":  active + "," + strings.Replace(active, "active", "grace", 1),
		"unknown state":   strings.Replace(active, "active", "live", 1),
		"short key":       "active:k:AAAA",
		"bad key id":      strings.Replace(active, "task-dev.v2", "a/b", 1),
		"no base64":       "active:k:%%%",
		"another base64":  "active:k:" + strings.Repeat("A", 42) + "B=", // of 32 zero bytes
		"two fields":      "active:k",
		"a key twice":     trust.VerifierKeys{set[0], {State: trust.KeyGrace, KeyID: "task-dev.v4", Public: set[0].Public}}.String(),
	} {
		_, err := trust.ParseTaskTrust(bad)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), name)
	}
}

func TestTaskTrustLimits(t *testing.T) {
	t.Parallel()
	keys := func(n int, state trust.KeyState) trust.VerifierKeys {
		out := make(trust.VerifierKeys, n)
		for i := range out {
			out[i] = trust.VerifierKey{State: state, KeyID: string(state) + strconv.Itoa(i), Public: testKey(t)}
		}
		return out
	}
	active := keys(1, trust.KeyActive)
	for _, row := range []struct {
		trust.TaskTrust
		valid bool
	}{
		{trust.TaskTrust{Keys: append(active, keys(3, trust.KeyGrace)...), Roots: keys(2, trust.KeyRoot)}, true},
		{trust.TaskTrust{Keys: append(active, keys(4, trust.KeyGrace)...)}, false},
		{trust.TaskTrust{Keys: active, Roots: keys(3, trust.KeyRoot)}, false},
	} {
		got, err := trust.ParseTaskTrust(row.String())
		if row.valid {
			require.NoError(t, err)
			require.Equal(t, row.TaskTrust, got)
		} else {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
		}
	}
}
