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
)

// pinnedKey is the one version of the task key that this process signs with.
type pinnedKey struct {
	version int
	id      string
	public  ed25519.PublicKey
}

// PinTaskKey pins a version of the task key, 0 the newest. Vault itself signs
// with whatever is newest, so that a rotation in Vault alone would switch to a
// key no node knows yet. Therefore each signature names its version, the version
// is read only here (Login calls it), and a rotation calls it once every node
// has the new key.
func (c *Client) PinTaskKey(ctx context.Context, version int) error {
	key, err := c.readTaskKey(ctx, version)
	if err != nil {
		return err
	}
	c.pin.Store(key)
	return nil
}

func (c *Client) readTaskKey(ctx context.Context, version int) (*pinnedKey, error) {
	name := taskKey(c.env)
	secret, err := c.call(ctx, "task_key", get(transitMount+"/keys/"+name))
	if errors.Is(err, errAbsent) {
		return nil, schema.NewError(schema.KindInternal, "Vault at %s has no task key %s", c.address, name).WithNext("gpuaas admin setup")
	}
	if err != nil {
		return nil, err
	}
	var key transitKey
	if err := decode(secret, &key); err != nil {
		return nil, err
	}
	if version == 0 {
		version = key.LatestVersion
	}
	public, err := base64.StdEncoding.DecodeString(key.Keys[strconv.Itoa(version)].PublicKey)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return nil, schema.Errorf(schema.KindInternal, "Vault's task key %s has no Ed25519 version %d", name, version)
	}
	return &pinnedKey{version, taskKeyID(c.env, version), public}, nil
}

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

// Verifiers returns the key that verifies what Sign signs, active. It needs no
// call, so it answers while Vault is away.
func (c *Client) Verifiers(context.Context) (schema.VerifierSet, error) {
	pin := c.pin.Load()
	return schema.VerifierSet{{State: schema.KeyActive, KeyID: pin.id, Public: pin.public}}, nil
}

// Sign implements activities.Signer: a DSSE envelope of the payload with type
// schema.TaskPayloadType, signed in Vault with the pinned key version. Signing
// twice is harmless; Ed25519 gives the same signature.
func (c *Client) Sign(ctx context.Context, payload []byte) ([]byte, error) {
	signer, err := dsse.NewEnvelopeSigner(taskSigner{c, c.pin.Load()})
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "preparing to sign a task")
	}
	envelope, err := signer.SignPayload(ctx, schema.TaskPayloadType, payload)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(envelope)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "rendering a signed task")
	}
	return raw, nil
}

// taskSigner is one pinned key version in the form the DSSE library asks for.
type taskSigner struct {
	client *Client
	key    *pinnedKey
}

// KeyID implements dsse.Signer.
func (s taskSigner) KeyID() (string, error) { return s.key.id, nil }

// Sign implements dsse.Signer. The bytes are signed as they are, without a hash
// of our own before. The signature is checked with the pinned public key before
// it goes out: a key that was re-made under its old name, or restored from an
// older time, is found here and not by every node.
func (s taskSigner) Sign(ctx context.Context, data []byte) ([]byte, error) {
	path := transitMount + "/sign/" + taskKey(s.client.env)
	secret, err := s.client.call(ctx, "sign", put(path, map[string]any{
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
		return nil, schema.NewError(schema.KindInternal,
			"Vault's signature is not by key %s as it was when this process started", s.key.id).
			WithNext("compare the task key in Vault with the nodes' verifier set, then restart")
	}
	return signature, nil
}
