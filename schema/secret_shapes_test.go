package schema

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestToken(t *testing.T) {
	t.Parallel()
	text, id, hash := NewToken()
	gotID, gotHash, err := ParseToken(text)
	require.NoError(t, err)
	require.Equal(t, id, gotID)
	require.Equal(t, hash, gotHash)

	for _, bad := range []string{"", "gpuet_", text[:len(text)-1], text + "x", strings.Replace(text, ".", ":", 1),
		strings.TrimPrefix(text, TokenPrefix), TokenPrefix + id + "."} {
		_, _, err := ParseToken(bad)
		require.Equal(t, KindUnauthenticated, KindOf(err), bad)
		require.NotContains(t, err.Error(), id)
	}
}

func FuzzParseToken(f *testing.F) {
	text, _, _ := NewToken()
	f.Add(text)
	f.Add(TokenPrefix + ".")
	f.Fuzz(func(t *testing.T, s string) {
		id, hash, err := ParseToken(s)
		if err != nil {
			require.Equal(t, KindUnauthenticated, KindOf(err))
			return
		}
		require.True(t, IsID(id))
		require.Len(t, hash, 32)
	})
}

func testKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	return public
}

func TestVerifierSet(t *testing.T) {
	t.Parallel()
	set := VerifierSet{
		{KeyActive, "task-dev.v2", testKey(t)}, {KeyGrace, "task-dev.v1", testKey(t)}, {KeyStaged, "task-dev.v3", testKey(t)},
	}
	got, err := ParseVerifierSet(set.String())
	require.NoError(t, err)
	require.Equal(t, set, got)
	require.Len(t, got.Accepts(), 2)

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
		"too many": strings.Join([]string{active, strings.Replace(set[1:2].String(), "v1", "a", 1),
			strings.Replace(set[1:2].String(), "v1", "b", 1), strings.Replace(set[1:2].String(), "v1", "c", 1),
			strings.Replace(set[1:2].String(), "v1", "d", 1)}, ","),
	} {
		_, err := ParseVerifierSet(bad)
		require.Equal(t, KindInvalidRequest, KindOf(err), name)
	}
}

func FuzzParseVerifierSet(f *testing.F) {
	f.Add("active:k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Add("active:k:x,grace:l:y")
	f.Fuzz(func(t *testing.T, s string) {
		set, err := ParseVerifierSet(s)
		if err != nil {
			require.Equal(t, KindInvalidRequest, KindOf(err))
			return
		}
		again, err := ParseVerifierSet(set.String())
		require.NoError(t, err)
		require.Equal(t, set, again)
	})
}

func chain(n int) []AuditEvent {
	var out []AuditEvent
	prev := ""
	for i := range n {
		e := AuditEvent{Stream: "s", Seq: int64(i + 1), At: time.Unix(int64(i), 123456789), Actor: "a",
			Action: "nodes.drain", Target: "s", Result: AuditAccepted, PrevHash: prev, Detail: map[string]string{"b": "1", "a": "2"}}
		e.Hash = e.ComputeHash()
		prev = e.Hash
		out = append(out, e)
	}
	return out
}

func TestAuditChain(t *testing.T) {
	t.Parallel()
	events := chain(5)
	require.NoError(t, VerifyChain(nil, events))
	require.NoError(t, VerifyChain(&events[2], events[3:]))

	t.Run("an edited row is found", func(t *testing.T) {
		t.Parallel()
		bad := chain(5)
		bad[2].Reason = "something else"
		require.ErrorContains(t, VerifyChain(nil, bad), "row 3 was changed")
	})
	t.Run("a row restamped with a new hash is found at its successor", func(t *testing.T) {
		t.Parallel()
		bad := chain(5)
		bad[2].Actor = "mallory"
		bad[2].Hash = bad[2].ComputeHash()
		require.ErrorContains(t, VerifyChain(nil, bad), "row 4 does not continue row 3")
	})
	t.Run("a cut row is found", func(t *testing.T) {
		t.Parallel()
		bad := chain(5)
		require.ErrorContains(t, VerifyChain(nil, append(bad[:2:2], bad[3:]...)), "row 3 is missing")
	})
	t.Run("the time is hashed at the precision the database keeps", func(t *testing.T) {
		t.Parallel()
		e := chain(1)[0]
		e.At = e.At.Truncate(time.Microsecond).In(time.FixedZone("x", 3600))
		require.Equal(t, e.Hash, e.ComputeHash())
	})
}

func TestSKU(t *testing.T) {
	t.Parallel()
	h100 := SKU{Name: "h100", GPUModel: "H100", MaxGPUs: 8, MinCPUs: 64, MinMemoryBytes: 1 << 39, Active: true}
	require.NoError(t, h100.CheckRegistration(8))
	require.Error(t, h100.CheckRegistration(9))
	require.Error(t, h100.CheckRegistration(-1))
	h100.Active = false
	require.ErrorContains(t, h100.CheckRegistration(8), "not active")

	gpu := GPU{Model: "NVIDIA H100 80GB HBM3"}
	require.Empty(t, h100.Mismatches(1, Facts{CPUs: 64, MemoryBytes: 1 << 39, GPUs: []GPU{gpu}}))
	require.Len(t, h100.Mismatches(2, Facts{CPUs: 2, MemoryBytes: 1, GPUs: []GPU{{Model: "NVIDIA A100"}}}), 4)
}

func TestBundleEnvFile(t *testing.T) {
	t.Parallel()
	b := BootstrapBundle{NodeID: "n", EnrollmentToken: "t", APIURL: "https://x"}
	require.Contains(t, b.EnvFile(), "GPUAAS_NODE_ID=\"n\"\n")
	require.Empty(t, Fingerprint("no certificate"))
}
