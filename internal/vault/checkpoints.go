package vault

import (
	"context"
	"crypto/ed25519"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// checkpointKey is the key of audit checkpoints.
type checkpointKey struct{ session *session }

func (k *checkpointKey) name() string { return checkpointKeyName(k.session.conf.Env) }

// CheckpointKeys returns the public keys of all versions of the checkpoint key, by key ID.
func (k *checkpointKey) CheckpointKeys(ctx context.Context) (map[string]ed25519.PublicKey, error) {
	key, err := readKey(ctx, k.session, "checkpoint_key", k.name())
	if err != nil {
		return nil, err
	}
	keys := map[string]ed25519.PublicKey{}
	for _, v := range key.verifiers(k.name()) {
		keys[v.KeyID] = v.Public
	}
	return keys, nil
}

// SignCheckpoint returns the checkpoint with the environment, the key ID and the signature
// of the newest version of the checkpoint key. Only the worker may sign.
func (k *checkpointKey) SignCheckpoint(ctx context.Context, p audit.Checkpoint) (audit.Checkpoint, error) {
	name := k.name()
	key, err := readKey(ctx, k.session, "checkpoint_key", name)
	if err != nil {
		return p, err
	}
	version, err := key.version(name, key.LatestVersion)
	if err != nil {
		return p, err
	}
	p.Env, p.KeyID = k.session.conf.Env, version.id()
	p.Signature, err = signer{k.session, "sign_checkpoint", version}.Sign(ctx, p.Signed())
	return p, err
}
