package vault

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// transitKey is Vault's description of a transit key.
type transitKey struct {
	Type                 string `json:"type"`
	LatestVersion        int    `json:"latest_version"`
	Exportable           bool   `json:"exportable"`
	AllowPlaintextBackup bool   `json:"allow_plaintext_backup"`
	// MinSigning is the oldest version with which Vault signs; 0 if it signs with all.
	MinSigning int `json:"min_encryption_version"`
	Keys       map[string]struct {
		PublicKey string `json:"public_key"`
	} `json:"keys"`
}

// keyVersion is one version of a transit key.
type keyVersion struct {
	name    string // of the transit key
	version int
	public  ed25519.PublicKey
}

func (k keyVersion) id() string { return keyID(k.name, k.version) }

// verifier is the key in a verifier set.
func (k keyVersion) verifier(state trust.KeyState) trust.VerifierKey {
	return trust.VerifierKey{KeyID: k.id(), Public: k.public, State: state}
}

// readKey reads a key. A key that does not exist is KindInternal with reason
// ReasonNoKey; readKey never creates one.
func readKey(ctx context.Context, c caller, op, name string) (transitKey, error) {
	key, err := fetch[transitKey](ctx, c, op, get(transitMount+"/keys/"+name))
	if errors.Is(err, errAbsent) {
		return key, schema.NewError(schema.KindInternal, "Vault at %s has no key %s", c.url(), name).
			WithReason(ReasonNoKey).WithNext("in a new Vault: gpuaas admin setup; otherwise restore Vault's backup")
	}
	return key, err
}

// version returns one version of the key.
func (k transitKey) version(name string, version int) (keyVersion, error) {
	public, err := base64.StdEncoding.DecodeString(k.Keys[strconv.Itoa(version)].PublicKey)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return keyVersion{}, schema.NewError(schema.KindInternal, "Vault's key %s has no Ed25519 version %d", name, version).
			WithReason(ReasonNoKey)
	}
	return keyVersion{name, version, public}, nil
}

// byID returns the version of the key that an ID names.
func (k transitKey) byID(name, id string) (keyVersion, error) {
	version, ok := versionOf(name, id)
	if !ok {
		return keyVersion{}, schema.NewError(schema.KindInternal, "%q is not a version of Vault's key %s", id, name).WithReason(ReasonNoKey)
	}
	return k.version(name, version)
}

// verifiers returns the public keys of all versions.
func (k transitKey) verifiers(name string) []trust.VerifierKey {
	var keys []trust.VerifierKey
	for text := range k.Keys {
		version, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		if v, err := k.version(name, version); err == nil {
			keys = append(keys, v.verifier(trust.KeyActive))
		}
	}
	return keys
}

// signer adapts a key version to the DSSE library.
type signer struct {
	vault caller
	op    string
	key   keyVersion
}

// KeyID implements dsse.Signer.
func (s signer) KeyID() (string, error) { return s.key.id(), nil }

// Sign implements dsse.Signer. Vault signs the data itself, without hashing it
// first. Sign verifies the signature with the public key that was read before, so
// that a key that was recreated under its old name, or restored from an older
// backup, is detected here and not by every node.
func (s signer) Sign(ctx context.Context, data []byte) ([]byte, error) {
	response, err := fetch[struct {
		Signature string `json:"signature"`
	}](ctx, s.vault, s.op, put(transitMount+"/sign/"+s.key.name, map[string]any{
		"input":       base64.StdEncoding.EncodeToString(data),
		"key_version": s.key.version,
	}))
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(response.Signature, "vault:v"+strconv.Itoa(s.key.version)+":")
	signature, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || !ed25519.Verify(s.key.public, data, signature) {
		return nil, schema.NewError(schema.KindInternal, "Vault's signature is not by the verifier set's key %s", s.key.id()).
			WithReason(ReasonKeyMismatch).WithNext(nextMismatch)
	}
	return signature, nil
}

// seal returns a DSSE envelope of the payload with one signature per signer, all
// over the same bytes.
func seal(ctx context.Context, payloadType string, payload []byte, signers ...dsse.Signer) (json.RawMessage, error) {
	s, err := dsse.NewEnvelopeSigner(signers...)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "preparing to sign a document of type %s", payloadType)
	}
	envelope, err := s.SignPayload(ctx, payloadType, payload)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(envelope)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding a signed document")
	}
	return raw, nil
}
