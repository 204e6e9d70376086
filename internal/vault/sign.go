package vault

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Follow makes the client sign under the newest verifier set. It verifies the set
// with Vault's root key, compares Vault's public key with the set's active key,
// and pins that key version. Vault signs with its newest version unless a request
// names one, so a rotation in Vault alone would switch to a key that no node
// trusts. Therefore every request names the pinned version, and only a published
// set changes it.
//
// KindInternal with reason ReasonKeyMismatch, ReasonKeyRetired, ReasonNoKey or ReasonBadSet stops
// all signing until a later Follow succeeds. If Vault is unavailable, Follow
// returns its error and the last set stays in use.
func (c *Client) Follow(ctx context.Context, set trust.StoredSet) error {
	f, err := checkSet(ctx, c, c.conf.Env, set)
	if err != nil && !slices.Contains([]string{ReasonKeyMismatch, ReasonKeyRetired, ReasonNoKey, ReasonBadSet}, schema.AsError(err).Reason) {
		return err
	}
	f.err = err
	before := c.followed.Swap(&f)
	if before == nil || before.err != nil || before.key.id() != f.key.id() {
		select { // one notification is enough
		case c.keyChanged <- struct{}{}:
		default:
		}
	}
	return err
}

// current returns the verifier set in use, or the error that prevents signing.
func (c *Client) current() (*followed, error) {
	f := c.followed.Load()
	if f == nil {
		return nil, unavailable(ReasonNoSet, "if no verifier set was ever published: gpuaas admin setup",
			"the task key has not been checked against the newest verifier set yet")
	}
	return f, f.err
}

// TaskTrust returns a node's initial trust for verifying tasks: the keys of the
// set in use, the root key that signed it, and the set as the floor. It makes no
// call, so it also works while Vault is unavailable.
func (c *Client) TaskTrust(context.Context) (trust.TaskTrust, error) {
	f, err := c.current()
	if err != nil {
		return trust.TaskTrust{}, err
	}
	// A bundle has no room for all revoked keys, and what it does not list is not accepted.
	keys := slices.DeleteFunc(slices.Clone(f.set.Doc.Keys), func(k trust.VerifierKey) bool { return k.State == trust.KeyRevoked })
	return trust.TaskTrust{Keys: keys, Roots: f.set.TrustedRoots(trust.VerifierKeys{f.root.verifier(trust.KeyRoot)}), Floor: f.set.Ref()}, nil
}

// Sign implements activities.Signer. It returns a DSSE envelope of the payload with
// type task.PayloadType, signed in Vault with the pinned key version. Repeating
// the call returns the same signature, because Ed25519 is deterministic.
func (c *Client) Sign(ctx context.Context, payload []byte) ([]byte, error) {
	envelope, _, err := c.sign(ctx, "sign", task.PayloadType, payload)
	return envelope, err
}

// SignRemoval returns a DSSE envelope of a removal, signed as Sign signs a task. The caller
// has checked that the removal completed; see trust.Removal.
func (c *Client) SignRemoval(ctx context.Context, r trust.Removal) ([]byte, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding a removal")
	}
	envelope, _, err := c.sign(ctx, "sign_removal", trust.RemovalPayloadType, payload)
	return envelope, err
}

// sign signs a document with the pinned version of the task key. It returns the
// envelope and the key's ID.
func (c *Client) sign(ctx context.Context, op, payloadType string, payload []byte) (envelope json.RawMessage, keyID string, err error) {
	f, err := c.current()
	if err != nil {
		return nil, "", err
	}
	envelope, err = seal(ctx, payloadType, payload, signer{c, op, f.key})
	return envelope, f.key.id(), err
}
