package vault

import (
	"context"
	"encoding/json"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Follow takes the newest verifier set: it checks the set against Vault's root
// key, then that Vault's public key is the set's active key, and pins that
// version. Vault itself signs with whatever is newest, so that a rotation in
// Vault alone would switch to a key no node knows yet. Therefore each signature
// names its version, and only a published set moves it.
//
// KindInternal with reason ReasonKeyMismatch, ReasonNoKey or ReasonBadSet stops
// all signing until a later Follow succeeds. While Vault is away the last set
// stays, and its error is returned.
func (c *Client) Follow(ctx context.Context, set trust.StoredSet) error {
	f, err := c.transit().check(ctx, c.env, set)
	if err != nil && !stops(err) {
		return err
	}
	f.err = err
	before := c.followed.Swap(&f)
	if before == nil || before.err != nil || before.key.id() != f.key.id() {
		select { // whoever keeps the lease key needs to hear of it once
		case c.moved <- struct{}{}:
		default:
		}
	}
	return err
}

// current returns the set that is followed, or why nothing may be signed.
func (c *Client) current() (*followed, error) {
	f := c.followed.Load()
	if f == nil {
		return nil, schema.NewError(schema.KindServiceUnavailable, "the task key was not checked against the newest verifier set yet").
			WithReason(ReasonNoSet).WithNext("gpuaas admin setup, when no verifier set was ever published")
	}
	return f, f.err
}

// TaskTrust returns what a node starts from when it judges tasks: the keys of
// the set that is followed, the root that signed it, and the set as the floor.
// It needs no call, so it answers while Vault is away.
func (c *Client) TaskTrust(context.Context) (trust.TaskTrust, error) {
	f, err := c.current()
	if err != nil {
		return trust.TaskTrust{}, err
	}
	return f.trust()
}

// Sign implements activities.Signer: a DSSE envelope of the payload with type
// task.PayloadType, signed in Vault with the pinned key version. Signing
// twice is harmless; Ed25519 gives the same signature.
func (c *Client) Sign(ctx context.Context, payload []byte) ([]byte, error) {
	f, err := c.current()
	if err != nil {
		return nil, err
	}
	return seal(ctx, task.PayloadType, payload, signer{c.transit(), "sign", f.key})
}

// SignLeaseKey signs the delegation of a replica's own key with the pinned
// version of the task key, and returns it with that key's id.
func (c *Client) SignLeaseKey(ctx context.Context, k trust.LeaseKey) (envelope json.RawMessage, keyID string, err error) {
	f, err := c.current()
	if err != nil {
		return nil, "", err
	}
	payload, err := json.Marshal(k)
	if err != nil {
		return nil, "", schema.Wrap(schema.KindInternal, err, "rendering a lease key")
	}
	envelope, err = seal(ctx, trust.LeaseKeyPayloadType, payload, signer{c.transit(), "sign_lease_key", f.key})
	return envelope, f.key.id(), err
}
