package verify

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestRejectBadGrants: each offer of the corpus is refused with its reason.
func TestRejectBadGrants(t *testing.T) {
	t.Parallel()
	for name, bad := range agenttest.BadGrants() {
		f := agenttest.NewQuiet(t)
		_, err := verifierFor(f).Verify(f.WrongOffer(bad, 1, testNonce))
		require.Equal(t, schema.KindTaskRefused, schema.KindOf(err), name)
		require.Equal(t, bad.Reason, schema.AsError(err).Reason, name)
	}
}

// TestTaskWithoutOperation: only agent.update_trust may expect no operation while one holds the
// node.
func TestTaskWithoutOperation(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	f.OnGrant = func(g *task.Grant) { g.OpSeq = 7 }
	for _, row := range task.Types() {
		p := f.Payload(row.Type, 1, nil)
		p.Expect = task.Expectation{}
		_, err := verifierFor(f).Verify(f.Granted(f.OfferOf(p, 1), testNonce))
		if row.Type == task.UpdateTrust {
			require.NoError(t, err, row.Type)
			continue
		}
		require.Equal(t, "state_expectation", schema.AsError(err).Reason, row.Type)
	}
}

// TestGrantWithoutNonce: a grant without a nonce is refused by an agent that has none.
func TestGrantWithoutNonce(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	v := verifierFor(f)
	v.Nonce = ""
	_, err := v.Verify(f.Granted(f.OfferOf(f.Payload(task.WorkloadCordon, 1, nil), 1), ""))
	require.Equal(t, refusal.GrantOtherNonce, schema.AsError(err).Reason)
}

// TestDelegateWithTheNameOfAKey: a delegation to another key with the name of a key of the set is refused.
func TestDelegateWithTheNameOfAKey(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	v := verifierFor(f)
	d := trust.LeaseKey{V: 1, Env: v.ID.Env, KeyID: "replica", Public: make([]byte, 32), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	_, err := v.delegate(d)
	require.NoError(t, err)
	d.KeyID = v.Set.Doc.Keys[0].KeyID
	_, err = v.delegate(d)
	require.Equal(t, refusal.GrantKeyNotDelegate, schema.AsError(err).Reason)
}

// TestExpiredSet: destructive tasks are rejected, the others are accepted.
func TestExpiredSet(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	v := verifierFor(f)
	v.Set.Doc.ExpiresAt = time.Now().Add(-time.Minute)
	for _, row := range task.Types() {
		_, err := v.Verify(f.Granted(f.OfferOf(f.Payload(row.Type, 1, nil), 1), testNonce))
		if row.Effect != task.EffectDestructive {
			require.NoError(t, err, row.Type)
			continue
		}
		require.Equal(t, "set_expired", schema.AsError(err).Reason, row.Type)
	}
}

// TestGrantWithForkedSet is refused: two sets of one version cannot both be true.
func TestGrantWithForkedSet(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	v := verifierFor(f)
	v.Set.Doc.Version, v.Set.Hash = 2, schema.SHA256Hex([]byte("mine"))
	f.OnGrant = func(g *task.Grant) { g.SetVersion, g.SetHash = 2, schema.SHA256Hex([]byte("other")) }
	o := f.OfferOf(f.Payload(task.WorkloadCordon, 1, nil), 1)
	_, err := v.Verify(f.Granted(o, testNonce))
	require.Equal(t, trust.ReasonSetFork, schema.AsError(err).Reason)
	f.OnGrant = func(g *task.Grant) { g.SetVersion, g.SetHash = 1, schema.SHA256Hex([]byte("older")) }
	_, err = v.Verify(f.Granted(o, testNonce))
	require.NoError(t, err, "a replica that is behind")
}

// TestVerifyByServerTime: the node's clock does not count, and the time never goes
// back.
func TestVerifyByServerTime(t *testing.T) {
	t.Parallel()
	year := 365 * 24 * time.Hour
	for name, off := range map[string]time.Duration{"ahead": year, "behind": -year} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.NewQuiet(t)
			v := verifierFor(f)
			v.Clock = &Clock{local: func() time.Time { return time.Now().Add(off) }}
			_, err := v.Verify(f.Granted(f.OfferOf(f.Payload(task.WorkloadCordon, 1, nil), 1), testNonce))
			require.NoError(t, err)
			old := f.Payload(task.WorkloadCordon, 2, nil)
			old.ExpiresAt = time.Now().Add(-time.Second)
			f.Clock = func() time.Time { return time.Now().Add(-time.Hour) } // a replica that is behind
			_, err = v.Verify(f.Granted(f.OfferOf(old, 1), testNonce))
			require.Equal(t, "expired", schema.AsError(err).Reason)
		})
	}
}

// TestRejectedGrantKeepsClock: a delegation bounds how far its replica can move
// the node's time.
func TestRejectedGrantKeepsClock(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	v := verifierFor(f)
	f.OnGrant = func(g *task.Grant) { g.ServerTime = time.Now().Add(10000 * time.Hour) }
	o := f.OfferOf(f.Payload(task.WorkloadCordon, 1, nil), 1)
	_, err := v.Verify(f.Granted(o, testNonce))
	require.Equal(t, "grant_key_expired", schema.AsError(err).Reason)
	require.True(t, v.Clock.Now().IsZero())
}

// TestOfferBitFlips: an offer with one bit changed anywhere, in envelope,
// grant or delegation, is the same task or none. Each byte is tried.
func TestOfferBitFlips(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	good := f.Granted(f.OfferOf(p, 1), testNonce)
	v := verifierFor(f)
	want, err := v.Verify(good)
	require.NoError(t, err)
	draws := rand.New(rand.NewPCG(1, 1))
	accepted := 0
	for name, pick := range map[string]func(*wire.TaskOffer) *json.RawMessage{
		"envelope": func(o *wire.TaskOffer) *json.RawMessage { return &o.Envelope },
		"grant":    func(o *wire.TaskOffer) *json.RawMessage { return &o.Grant },
		"key":      func(o *wire.TaskOffer) *json.RawMessage { return &o.GrantKey },
	} {
		for i := range *pick(&good) {
			o := good
			part := pick(&o)
			*part = bytes.Clone(*part)
			(*part)[i] ^= 1 << draws.IntN(8)
			got, err := v.Verify(o)
			if err == nil {
				accepted++
				require.Equal(t, want.Raw, got.Raw, "%s byte %d", name, i)
				continue
			}
			require.Equal(t, schema.KindTaskRefused, schema.KindOf(err), "%s byte %d", name, i)
			require.NotEmpty(t, schema.AsError(err).Reason, "%s byte %d", name, i)
		}
	}
	require.Less(t, accepted, 100)
}

// TestOfferKnownTaskAfterExpiry: the journal's own task may be offered again past its
// time, since nothing new is begun.
func TestOfferKnownTaskAfterExpiry(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	p.ExpiresAt = time.Now().Add(-time.Second)
	o := f.Granted(f.OfferOf(p, 1), testNonce)
	v := verifierFor(f)
	_, err := v.Verify(o)
	require.Equal(t, "expired", schema.AsError(err).Reason)
	v.Known = func(taskID, digest string) bool { return taskID == p.TaskID && digest == schema.SHA256Hex(f.Body(p)) }
	_, err = v.Verify(o)
	require.NoError(t, err)
}

// FuzzDecode: the verified bytes are the executed ones. A body that the
// strict decoder takes reads the same for a plain one and at a restart.
func FuzzDecode(f *testing.F) {
	api := agenttest.NewQuiet(f)
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	f.Add(api.Body(api.Payload(task.WorkloadCordon, 1, nil)))
	for _, s := range []string{`{"v":1,"V":2}`, `{"env":"a","env":"b"}`, `{"v":1}{"v":2}`, `{"params":{"a":1,"a":2}}`, "{\"env\":\"\\ud800\"}", `[]`, `null`} {
		f.Add([]byte(s))
	}
	keys := []trust.VerifierKey{{State: trust.KeyActive, KeyID: "k1", Public: agenttest.PublicOf(key)}}
	f.Fuzz(func(t *testing.T, body []byte) {
		var p task.Payload
		raw, err := open(task.PayloadType, "", agenttest.SignBytes(t, key, task.PayloadType, body), keys, &p)
		if err != nil {
			return
		}
		require.Equal(t, body, raw)
		var plain task.Payload
		require.NoError(t, json.Unmarshal(raw, &plain))
		require.Equal(t, plain, p)
		var again task.Payload
		err = schema.DecodeStrict(raw, wire.MaxBodyBytes, &again) // as a restart reads it
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
