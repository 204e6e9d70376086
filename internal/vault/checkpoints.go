package vault

import (
	"context"
	"crypto/ed25519"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// CheckpointKeys returns the public keys of all versions of the checkpoint key, by key ID.
func (c *Client) CheckpointKeys(ctx context.Context) (map[string]ed25519.PublicKey, error) {
	key, err := readKey(ctx, c, "checkpoint_key", checkpointKey(c.conf.Env))
	if err != nil {
		return nil, err
	}
	keys := map[string]ed25519.PublicKey{}
	for _, v := range key.verifiers(checkpointKey(c.conf.Env)) {
		keys[v.KeyID] = v.Public
	}
	return keys, nil
}

// SignCheckpoint returns the checkpoint with the environment, the key ID and the signature
// of the newest version of the checkpoint key. Only the worker may sign.
func (c *Client) SignCheckpoint(ctx context.Context, p audit.Checkpoint) (audit.Checkpoint, error) {
	name := checkpointKey(c.conf.Env)
	key, err := readKey(ctx, c, "checkpoint_key", name)
	if err != nil {
		return p, err
	}
	version, err := key.version(name, key.LatestVersion)
	if err != nil {
		return p, err
	}
	p.Env, p.KeyID = c.conf.Env, version.id()
	p.Signature, err = signer{c, "sign_checkpoint", version}.Sign(ctx, p.Signed())
	return p, err
}
