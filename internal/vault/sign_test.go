package vault

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// verifier is a key of a verifier set, as a node's check uses it.
type verifier struct{ schema.VerifierKey }

func (v verifier) KeyID() (string, error)   { return v.VerifierKey.KeyID, nil }
func (v verifier) Public() crypto.PublicKey { return v.VerifierKey.Public }
func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(v.VerifierKey.Public, data, sig) {
		return errors.New("bad signature")
	}
	return nil
}

// verify checks an envelope with the DSSE library and returns its payload.
func verify(t *testing.T, envelope []byte, set schema.VerifierSet) ([]byte, error) {
	t.Helper()
	var e dsse.Envelope
	require.NoError(t, json.Unmarshal(envelope, &e))
	require.Equal(t, schema.TaskPayloadType, e.PayloadType)
	var keys []dsse.Verifier
	for _, k := range set.Accepts() {
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

	// The API hands out the key, through the text form of the bundle.
	handed, err := api.Verifiers(t.Context())
	require.NoError(t, err)
	set, err := schema.ParseVerifierSet(handed.String())
	require.NoError(t, err)
	require.Equal(t, "task-test.v1", set[0].KeyID)
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

// A rotation in Vault alone changes nothing for those who run (B35).
func TestRotationByHandChangesNothing(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	payload := []byte("{}")
	signed, err := c.Sign(t.Context(), payload)
	require.NoError(t, err)
	set, err := c.Verifiers(t.Context())
	require.NoError(t, err)

	b.write(t, "transit/keys/task-test/rotate", nil)
	again, err := c.Sign(t.Context(), payload)
	require.NoError(t, err)
	require.Equal(t, signed, again)
	setAgain, err := c.Verifiers(t.Context())
	require.NoError(t, err)
	require.Equal(t, set, setAgain)

	t.Run("a process that starts may be told to keep the old one", func(t *testing.T) {
		config := b.config("worker")
		config.TaskKeyVersion = 1
		pinned := b.loginWith(t, config)
		again, err := pinned.Sign(t.Context(), payload)
		require.NoError(t, err)
		require.Equal(t, signed, again)
	})
	t.Run("the explicit call moves on", func(t *testing.T) {
		require.NoError(t, c.PinTaskKey(t.Context(), 0))
		moved, err := c.Sign(t.Context(), payload)
		require.NoError(t, err)
		newSet, err := c.Verifiers(t.Context())
		require.NoError(t, err)
		require.Equal(t, "task-test.v2", newSet[0].KeyID)
		_, err = verify(t, moved, newSet)
		require.NoError(t, err)
		_, err = verify(t, moved, set)
		require.Error(t, err)
		require.NoError(t, c.PinTaskKey(t.Context(), 1), "and back")
	})
	t.Run("no such version", func(t *testing.T) {
		requireKind(t, c.PinTaskKey(t.Context(), 9), schema.KindInternal, "")
		again, err := c.Sign(t.Context(), payload)
		require.NoError(t, err, "the pin stays")
		require.Equal(t, signed, again)
	})
}

// A key that was re-made under its old name is found by the signer, not by every
// node.
func TestRemadeKeyIsNotUsed(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	root := b.Root(t)
	b.write(t, "transit/keys/task-test/config", map[string]any{"deletion_allowed": true})
	_, err := root.Logical().Delete("transit/keys/task-test")
	require.NoError(t, err)
	_, err = c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindInternal, "")
	b.write(t, "transit/keys/task-test", map[string]any{"type": "ed25519"})
	_, err = c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindInternal, "")
	require.ErrorContains(t, err, "task-test.v1")
}
