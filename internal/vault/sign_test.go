package vault

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// verifier is a key of a verifier set, as a node uses it.
type verifier struct{ trust.VerifierKey }

func (v verifier) KeyID() (string, error)   { return v.VerifierKey.KeyID, nil }
func (v verifier) Public() crypto.PublicKey { return v.VerifierKey.Public }
func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(v.VerifierKey.Public, data, sig) {
		return errors.New("bad signature")
	}
	return nil
}

// verify checks a task's envelope with the DSSE library and returns its payload.
func verify(t *testing.T, envelope []byte, set trust.VerifierKeys) ([]byte, error) {
	t.Helper()
	return verifyAs(t, task.PayloadType, envelope, accepted(set)...)
}

// accepted returns the keys whose signatures a node accepts.
func accepted(set trust.VerifierKeys) []trust.VerifierKey {
	return trust.Bundled(set, trust.VerifierSetRef{}).Accepted()
}

func verifyAs(t *testing.T, payloadType string, envelope []byte, accepted ...trust.VerifierKey) ([]byte, error) {
	t.Helper()
	var e dsse.Envelope
	require.NoError(t, json.Unmarshal(envelope, &e))
	require.Equal(t, payloadType, e.PayloadType)
	var keys []dsse.Verifier
	for _, k := range accepted {
		keys = append(keys, verifier{k})
	}
	v, err := dsse.NewEnvelopeVerifier(keys...)
	require.NoError(t, err)
	_, payload, err := v.VerifyAndDecode(t.Context(), &e)
	return payload, err
}

func TestSign(t *testing.T) {
	b := prepared(t)
	worker, api := b.login(t, "worker"), b.login(t, "api")
	payload := []byte(`{"v":1,"env":"test","params":{"a":"é"}}`)
	envelope, err := worker.Sign(t.Context(), payload)
	require.NoError(t, err)

	// The API publishes the key in the text form of the bundle.
	handed, err := api.TaskTrust(t.Context())
	require.NoError(t, err)
	trusted, err := trust.ParseTaskTrust(handed.String())
	require.NoError(t, err)
	set := trusted.Keys
	require.Equal(t, "task-test.v1", set[0].KeyID)
	require.Equal(t, "set-root-test.v1", trusted.Roots[0].KeyID)
	require.Equal(t, trust.VerifierSetRef{Version: 1, Hash: b.set.Hash}, trusted.Floor)
	got, err := verify(t, envelope, set)
	require.NoError(t, err)
	require.Equal(t, payload, got)

	again, err := worker.Sign(t.Context(), payload)
	require.NoError(t, err)
	require.Equal(t, envelope, again)

	t.Run("tampered", func(t *testing.T) {
		for name, change := range map[string]func(*dsse.Envelope){
			"payload": func(e *dsse.Envelope) {
				e.Payload = base64.StdEncoding.EncodeToString([]byte(`{"v":1,"env":"test","params":{"a":"e"}}`))
			},
			"type":      func(e *dsse.Envelope) { e.PayloadType += "x" },
			"signature": func(e *dsse.Envelope) { e.Signatures[0].Sig = "A" + e.Signatures[0].Sig[1:] },
			"key id":    func(e *dsse.Envelope) { e.Signatures[0].KeyID = "task-test.v2" },
		} {
			var e dsse.Envelope
			require.NoError(t, json.Unmarshal(envelope, &e))
			change(&e)
			v, err := dsse.NewEnvelopeVerifier(verifier{set[0]})
			require.NoError(t, err)
			_, err = v.Verify(t.Context(), &e)
			require.Error(t, err, name)
		}
	})
}

// A rotation in Vault alone changes nothing, neither for running nor for new
// clients: only a published set changes the signing key.
func TestFollowPinsKeyVersion(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	payload := []byte("{}")
	signed, err := c.Sign(t.Context(), payload)
	require.NoError(t, err)
	trust, err := c.TaskTrust(t.Context())
	require.NoError(t, err)

	b.write(t, "transit/keys/task-test/rotate", nil)
	b.write(t, "transit/keys/set-root-test/rotate", nil)
	require.NoError(t, c.Follow(t.Context(), b.set), "the hourly check")
	for name, client := range map[string]*Client{"running": c, "new": b.login(t, "worker")} {
		again, err := client.Sign(t.Context(), payload)
		require.NoError(t, err)
		require.Equal(t, signed, again, name)
		trustAgain, err := client.TaskTrust(t.Context())
		require.NoError(t, err)
		require.Equal(t, trust, trustAgain, name)
	}
	next, due, err := b.sets(t).Renewal(t.Context(), b.set, time.Now().Add(VerifierSetLifetime))
	require.NoError(t, err)
	require.True(t, due)
	require.NoError(t, c.Follow(t.Context(), next))
	again, err := c.Sign(t.Context(), payload)
	require.NoError(t, err)
	require.Equal(t, signed, again, "a renewal keeps the keys")

	t.Run("a published set changes the key", func(t *testing.T) {
		require.NoError(t, c.Follow(t.Context(), b.moved(t, next)))
		moved, err := c.Sign(t.Context(), payload)
		require.NoError(t, err)
		newTrust, err := c.TaskTrust(t.Context())
		require.NoError(t, err)
		require.Equal(t, "task-test.v2", newTrust.Keys[0].KeyID)
		_, err = verify(t, moved, newTrust.Keys)
		require.NoError(t, err)
		_, err = verify(t, signed, newTrust.Keys)
		require.NoError(t, err, "the old key is in grace")
		_, err = verify(t, moved, trust.Keys)
		require.Error(t, err)
	})
}

// moved publishes the successor of a set with version 2 of the task key active
// and version 1 in grace, as a rotation will.
func (b *bench) moved(t *testing.T, set trust.StoredSet) trust.StoredSet {
	t.Helper()
	s := b.sets(t)
	f, err := checkSet(t.Context(), s, testEnv, set)
	require.NoError(t, err)
	tasks, err := readKey(t.Context(), s, "", "task-test")
	require.NoError(t, err)
	doc := f.set.Doc
	doc.Version, doc.PrevHash = doc.Version+1, f.set.Hash
	active, err := tasks.version("task-test", 2)
	require.NoError(t, err)
	doc.Keys = trust.VerifierKeys{active.verifier(trust.KeyActive), f.key.verifier(trust.KeyGrace)}
	next, err := s.sign(t.Context(), doc, f.root, f.key)
	require.NoError(t, err)
	return next
}

func TestSignRequiresVerifierSet(t *testing.T) {
	b := prepared(t)
	c := b.loginWith(t, b.config("worker"))
	_, err := c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)
	_, err = c.TaskTrust(t.Context())
	requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)
	require.Zero(t, b.calls.of("sign"))
}

// The signer detects a key that was recreated under its old name, and stops.
func TestRecreatedKeyStopsSigning(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	root := b.Root(t)
	b.write(t, "transit/keys/task-test/config", map[string]any{"deletion_allowed": true})
	_, err := root.Logical().Delete("transit/keys/task-test")
	require.NoError(t, err)
	_, err = c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindInternal, "")
	requireKind(t, c.Follow(t.Context(), b.set), schema.KindInternal, ReasonNoKey)
	_, err = c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindInternal, ReasonNoKey)

	b.write(t, "transit/keys/task-test", map[string]any{"type": "ed25519"})
	err = c.Follow(t.Context(), b.set)
	requireKind(t, err, schema.KindInternal, ReasonKeyMismatch)
	require.ErrorContains(t, err, "task-test.v1 (sha256 ")
	require.ErrorContains(t, err, "Vault has task-test.v1 (sha256 ")
	require.NotEmpty(t, schema.AsError(err).Next)
	calls := b.calls.of("sign")
	_, err = c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindInternal, ReasonKeyMismatch)
	_, err = c.TaskTrust(t.Context())
	requireKind(t, err, schema.KindInternal, ReasonKeyMismatch)
	require.Equal(t, calls, b.calls.of("sign"), "no call to Vault")
	_, _, err = b.sets(t).Renewal(t.Context(), b.set, time.Now())
	requireKind(t, err, schema.KindInternal, ReasonKeyMismatch)
}
