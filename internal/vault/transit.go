package vault

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/hashicorp/vault/api"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
)

// transit is the engine with the signing keys, as a login or a setup reaches it.
type transit struct {
	call    func(ctx context.Context, doing string, r request) (*api.Secret, error)
	address string
}

func (s *session) transit() transit { return transit{s.call, s.address} }
func (s *setup) transit() transit   { return transit{s.do, s.address} }

// transitKey is what Vault says of a transit key.
type transitKey struct {
	Type                 string `json:"type"`
	LatestVersion        int    `json:"latest_version"`
	Exportable           bool   `json:"exportable"`
	AllowPlaintextBackup bool   `json:"allow_plaintext_backup"`
	DeletionAllowed      bool   `json:"deletion_allowed"`
	AutoRotatePeriod     int64  `json:"auto_rotate_period"`
	Keys                 map[string]struct {
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

// read reads a key. A key that Vault says is not there is KindInternal with
// reason ReasonNoKey; it is never made here.
func (t transit) read(ctx context.Context, doing, name string) (transitKey, error) {
	var key transitKey
	secret, err := t.call(ctx, doing, get(transitMount+"/keys/"+name))
	if errors.Is(err, errAbsent) {
		return key, schema.NewError(schema.KindInternal, "Vault at %s has no key %s", t.address, name).
			WithReason(ReasonNoKey).WithNext("gpuaas admin setup makes it where Vault is new; else restore Vault's backup")
	}
	if err != nil {
		return key, err
	}
	err = decode(secret, &key)
	return key, err
}

// version is one version of a key that was read, 0 the newest.
func (k transitKey) version(name string, version int) (keyVersion, error) {
	if version == 0 {
		version = k.LatestVersion
	}
	public, err := base64.StdEncoding.DecodeString(k.Keys[strconv.Itoa(version)].PublicKey)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return keyVersion{}, schema.NewError(schema.KindInternal, "Vault's key %s has no Ed25519 version %d", name, version).
			WithReason(ReasonNoKey)
	}
	return keyVersion{name, version, public}, nil
}

// signer is one key version in the form the DSSE library asks for.
type signer struct {
	transit
	doing string
	key   keyVersion
}

// KeyID implements dsse.Signer.
func (s signer) KeyID() (string, error) { return s.key.id(), nil }

// Sign implements dsse.Signer. The bytes are signed as they are, without a hash
// of our own before. The signature is checked with the public key as it was read
// before: a key that was re-made under its old name, or restored from an older
// time, is found here and not by every node.
func (s signer) Sign(ctx context.Context, data []byte) ([]byte, error) {
	secret, err := s.call(ctx, s.doing, put(transitMount+"/sign/"+s.key.name, map[string]any{
		"input":       base64.StdEncoding.EncodeToString(data),
		"key_version": s.key.version,
	}))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Signature string `json:"signature"`
	}
	if err := decode(secret, &answer); err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(answer.Signature, "vault:v"+strconv.Itoa(s.key.version)+":")
	signature, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || !ed25519.Verify(s.key.public, data, signature) {
		return nil, schema.NewError(schema.KindInternal, "Vault's signature is not by key %s as the verifier set has it", s.key.id()).
			WithReason(ReasonKeyMismatch).WithNext(nextMismatch)
	}
	return signature, nil
}

// seal signs a document: a DSSE envelope with one signature a signer, all over
// the same bytes.
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
		return nil, schema.Wrap(schema.KindInternal, err, "rendering a signed document")
	}
	return raw, nil
}
