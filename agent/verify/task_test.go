package verify

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func verifierFor(f *agenttest.API) Verifier {
	return Verifier{
		ID: f.ID, Set: trust.Bundled(f.Verifiers(), trust.VerifierSetRef{}), Nonce: testNonce, Clock: &Clock{local: time.Now},
	}
}

// testNonce is the nonce of a poll that a test makes up.
const testNonce = "0123456789abcdefABCDEF"

func TestVerifyRejects(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	later := map[string]bool{"bad_params": true, "replayed_seq": true} // need executors and the journal
	for name, bad := range agenttest.BadTasks(f) {
		if later[bad.Reason] {
			continue
		}
		_, err := verifierFor(f).check(bad.Envelope, time.Now())
		require.Equal(t, schema.KindTaskRefused, schema.KindOf(err), name)
		require.Equal(t, bad.Reason, schema.AsError(err).Reason, name)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	p.NotBefore = time.Now().Add(notBeforeSkew - time.Minute).UTC()
	got, err := verifierFor(f).check(f.Envelope(p), time.Now())
	require.NoError(t, err)
	require.Equal(t, p.TaskID, got.Payload.TaskID)

	v := verifierFor(f)
	v.Set.Doc.Keys[0].State = trust.KeyGrace
	_, err = v.check(f.Envelope(p), time.Now())
	require.NoError(t, err, "a key in grace")
	nameless := bytes.Replace(f.Envelope(p), []byte(`"keyid":"k1"`), []byte(`"keyid":""`), 1)
	_, err = v.check(nameless, time.Now())
	require.NoError(t, err, "the key id only narrows the search")
}

// TestBitFlips: no envelope with one bit changed gives another task. Two bits of
// each byte are tried.
func TestBitFlips(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	good := f.Envelope(f.Payload(task.WorkloadCordon, 1, nil))
	want, err := verifierFor(f).check(good, time.Now())
	require.NoError(t, err)
	accepted := 0
	for i := range good {
		for _, bit := range []int{i % 8, (i + 3) % 8} {
			flipped := bytes.Clone(good)
			flipped[i] ^= 1 << bit
			got, err := verifierFor(f).check(flipped, time.Now())
			if err == nil {
				// The last base64 digit of a signature holds unused bits, and
				// names match without regard to case: the same bytes were signed.
				accepted++
				require.Equal(t, want.Raw, got.Raw, "byte %d bit %d", i, bit)
				continue
			}
			require.Equal(t, schema.KindTaskRefused, schema.KindOf(err))
		}
	}
	require.Less(t, accepted, 64)
}

// FuzzVerify: whatever is accepted was signed by an accepted key, by a check of
// its own; whatever is refused is refused with a reason.
func FuzzVerify(f *testing.F) {
	api := agenttest.New(f)
	// Fixed, because the fuzzer's workers share inputs.
	api.Signer = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	api.Staged = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	api.ID.NodeID = "01890000-0000-7000-8000-000000000001"
	f.Add([]byte(api.Envelope(api.Payload(task.WorkloadCordon, 1, nil))))
	for _, bad := range agenttest.BadTasks(api) {
		f.Add([]byte(bad.Envelope))
	}
	v := verifierFor(api)
	f.Fuzz(func(t *testing.T, envelope []byte) {
		got, err := v.check(envelope, time.Now())
		switch {
		case err == nil && !signedBy(v.Set.Doc.Keys[0].Public, envelope, got.Raw):
			t.Fatalf("accepted what was never signed: %s", got.Raw)
		case err != nil && schema.KindOf(err) != schema.KindTaskRefused:
			t.Fatalf("untyped refusal: %v", err)
		case err != nil && schema.AsError(err).Reason == "":
			t.Fatalf("refusal without a reason: %v", err)
		}
	})
}

// signedBy checks a DSSE envelope in the plainest way.
func signedBy(key ed25519.PublicKey, envelope, raw []byte) bool {
	var e struct{ Signatures []struct{ Sig string } }
	if json.Unmarshal(envelope, &e) != nil {
		return false
	}
	pae := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(task.PayloadType), task.PayloadType, len(raw), raw)
	return slices.ContainsFunc(e.Signatures, func(s struct{ Sig string }) bool {
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			if sig, err := enc.DecodeString(s.Sig); err == nil && ed25519.Verify(key, pae, sig) {
				return true
			}
		}
		return false
	})
}
