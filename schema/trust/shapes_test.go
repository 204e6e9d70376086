package trust_test

import (
	"crypto/ed25519"
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

	for _, bad := range []string{"", "gpuet_", text[:len(text)-1], text + "x", strings.Replace(text, ".", ":", 1),
		strings.TrimPrefix(text, trust.TokenPrefix), trust.TokenPrefix + id + "."} {
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
	got, err := trust.ParseVerifierKeys(set.String())
	require.NoError(t, err)
	require.Equal(t, set, got)
	require.Len(t, trust.Bundled(got, trust.VerifierSetRef{}).Accepted(), 2)

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
		"two fields":      "active:k",
		"a root key":      active + "," + strings.Replace(set[1:2].String(), "grace", "root", 1),
		"a key twice":     active + "," + strings.NewReplacer("active", "grace", "v2", "v4").Replace(active),
		"too many": strings.Join([]string{active, strings.Replace(set[1:2].String(), "v1", "a", 1),
			strings.Replace(set[1:2].String(), "v1", "b", 1), strings.Replace(set[1:2].String(), "v1", "c", 1),
			strings.Replace(set[1:2].String(), "v1", "d", 1)}, ","),
	} {
		_, err := trust.ParseVerifierKeys(bad)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), name)
	}
}

func FuzzParseVerifierKeys(f *testing.F) {
	f.Add("active:k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Add("active:k:x,grace:l:y")
	f.Fuzz(func(t *testing.T, s string) {
		set, err := trust.ParseVerifierKeys(s)
		if err != nil {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		again, err := trust.ParseVerifierKeys(set.String())
		require.NoError(t, err)
		require.Equal(t, set, again)
	})
}

func TestBundleEnvFile(t *testing.T) {
	t.Parallel()
	b := trust.BootstrapBundle{NodeID: "n", EnrollmentToken: "t", APIURL: "https://x"}
	require.Contains(t, b.EnvFile(), "GPUAAS_NODE_ID=\"n\"\n")
	require.Empty(t, trust.Fingerprint("no certificate"))
}
