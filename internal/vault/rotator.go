package vault

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Rotator makes new versions of the signing keys and signs verifier sets. It implements
// activities.KeyRotator. Its login is not the worker's: nothing else uses the root key.
type Rotator struct {
	publisher

	client *Client
}

// LoginRotator logs in with the rotator's credentials. The caller must call Close.
func LoginRotator(ctx context.Context, c Config) (*Rotator, error) {
	client, err := Login(ctx, c)
	if err != nil {
		return nil, err
	}
	return &Rotator{publisher{client, c.Env}, client}, nil
}

// Close logs out.
func (r *Rotator) Close() { r.client.Close() }

// Healthy reports whether the login works.
func (r *Rotator) Healthy(ctx context.Context) error { return r.client.Healthy(ctx) }

// PlanKeys implements activities.KeyRotator. It changes nothing in Vault.
func (r *Rotator) PlanKeys(ctx context.Context, of rotation.Rotation, newest trust.StoredSet) (oldKey, newKey string, err error) {
	revoked := ""
	if of.Kind == rotation.RevokeKey {
		revoked = of.OldKey
	}
	f, err := r.check(ctx, newest, revoked)
	if err != nil {
		return "", "", err
	}
	name, oldKey := taskKey(r.env), f.set.Active().KeyID
	if of.Kind == rotation.SetRoot {
		name, oldKey = rootKey(r.env), f.root.id()
	}
	key, err := readKey(ctx, r.vault, "rotation_key", name)
	if err != nil {
		return "", "", err
	}
	newKey = keyID(name, key.LatestVersion+1)
	if of.Kind == rotation.RevokeKey {
		oldKey, newKey = of.OldKey, cmp.Or(successor(f.set, name, key.MinSigning, of.OldKey), newKey)
	}
	return oldKey, newKey, nil
}

// check is checkSet for a successor that revokes a key, or none. If Vault does not sign with a
// key of the newest set any longer, its successor must begin an epoch, which a revocation does.
// Another key than the retired one may be revoked: Vault signs with its successor.
func (r *Rotator) check(ctx context.Context, newest trust.StoredSet, revoked string) (followed, error) {
	f, err := checkSet(ctx, r.vault, r.env, newest)
	switch {
	case err == nil && revoked == "":
		err = f.rootRetired
	case err != nil && schema.AsError(err).Reason == ReasonKeyRetired && revoked != "":
		err = nil
	}
	return f, err
}

// successor returns the key of the set that signs after another one is revoked, "" if a new
// one is needed. Vault must sign with it: the record may be older than the end of a rotation.
func successor(set trust.VerifierSet, name string, minSigning int, revoked string) string {
	for _, s := range []trust.KeyState{trust.KeyActive, trust.KeyStaged, trust.KeyGrace} {
		for _, k := range set.Doc.Keys {
			version, ok := versionOf(name, k.KeyID)
			if k.State == s && k.KeyID != revoked && ok && version >= minSigning {
				return k.KeyID
			}
		}
	}
	return ""
}

// TaskKey implements activities.KeyRotator.
func (r *Rotator) TaskKey(ctx context.Context, id string) (trust.VerifierKey, error) {
	key, err := readKey(ctx, r.vault, "rotation_key", taskKey(r.env))
	if err != nil {
		return trust.VerifierKey{}, err
	}
	k, err := key.byID(taskKey(r.env), id)
	return k.verifier(trust.KeyActive), err
}

// SignSet implements activities.KeyRotator.
func (r *Rotator) SignSet(ctx context.Context, newest trust.StoredSet, t rotation.Target) (set trust.StoredSet, due bool, err error) {
	f, err := r.check(ctx, newest, t.Revoked())
	if err != nil {
		return set, false, err
	}
	n, err := r.successorOf(ctx, f, t, newest.Restored)
	if err != nil {
		return set, false, err
	}
	if !n.differs(f) && !newest.Restored {
		return newest, false, nil
	}
	set, err = r.sign(ctx, n.doc, n.root, n.active, f.others(n.doc.Epoch > f.set.Doc.Epoch, n.root)...)
	return set, true, err
}

// nextSet is a verifier set to be signed, with its signers.
type nextSet struct {
	doc          trust.VerifierSetDoc
	root, active keyVersion
}

// differs reports whether the set has other contents or another root signer than its
// predecessor.
func (n nextSet) differs(f followed) bool {
	return n.doc.Keys.String() != f.set.Doc.Keys.String() || n.doc.Roots.String() != f.set.Doc.Roots.String() || n.root.id() != f.root.id()
}

// successorOf returns the successor of the newest set with the target's keys. It creates the
// keys that Vault does not have yet.
func (r *Rotator) successorOf(ctx context.Context, f followed, t rotation.Target, restored bool) (nextSet, error) {
	for _, k := range f.set.Doc.Keys {
		if state, named := t.States[k.KeyID]; named && k.State == trust.KeyRevoked && state != trust.KeyRevoked {
			return nextSet{}, schema.NewError(schema.KindInternal, "key %s is revoked and does not become valid again", k.KeyID).
				WithReason("key_revoked").WithNext("gpuaas rotate show")
		}
	}
	n := nextSet{doc: f.next(t.Revokes || restored, time.Now()), root: f.root, active: f.key}
	keys, err := r.versions(ctx, taskKey(r.env), sortedIDs(t.States))
	if err == nil {
		err = r.mustSign(ctx, taskKey(r.env), t.Active())
	}
	if err != nil {
		return n, err
	}
	n.doc.Keys = slices.DeleteFunc(slices.Clone(f.set.Doc.Keys), func(k trust.VerifierKey) bool {
		_, named := t.States[k.KeyID]
		return named || k.State != trust.KeyRevoked
	})
	for _, k := range keys {
		n.doc.Keys = append(n.doc.Keys, k.verifier(t.States[k.id()]))
		if t.Revokes && t.States[k.id()] == trust.KeyActive {
			// The revoked key may be the one that signed until now.
			n.active = k
		}
	}
	n.doc.Keys = withoutOldest(n.doc.Keys)
	if f.rootRetired != nil {
		if len(f.roots) == 0 { // Vault returned no version with which it signs
			return n, f.rootRetired
		}
		oldest := f.roots[len(f.roots)-1]
		n.root, n.doc.Roots = oldest, trust.VerifierKeys{oldest.verifier(trust.KeyRoot)}
	}
	err = r.setRoots(ctx, &n, t)
	return n, err
}

// withoutOldest drops the oldest revoked keys if the set has too many. A key that is not listed
// does not verify either.
func withoutOldest(keys trust.VerifierKeys) trust.VerifierKeys {
	for len(keys) > trust.MaxSetKeys {
		i := slices.IndexFunc(keys, func(k trust.VerifierKey) bool { return k.State == trust.KeyRevoked })
		if i < 0 {
			break
		}
		keys = slices.Delete(keys, i, i+1)
	}
	return keys
}

func (r *Rotator) setRoots(ctx context.Context, n *nextSet, t rotation.Target) error {
	if len(t.Roots) == 0 {
		return nil
	}
	roots, err := r.versions(ctx, rootKey(r.env), t.Roots)
	if err == nil {
		err = r.mustSign(ctx, rootKey(r.env), t.SignedBy)
	}
	if err != nil {
		return err
	}
	n.doc.Roots = nil
	for _, k := range roots {
		n.doc.Roots = append(n.doc.Roots, k.verifier(trust.KeyRoot))
		if k.id() == t.SignedBy {
			n.root = k
		}
	}
	return nil
}

// mustSign returns rotation.ErrKeyRetired if Vault no longer signs with a version of a key; "" is none.
func (r *Rotator) mustSign(ctx context.Context, name, id string) error {
	version, ok := versionOf(name, id)
	if !ok {
		return nil
	}
	key, err := readKey(ctx, r.vault, "rotation_key", name)
	if err == nil && version < key.MinSigning {
		err = rotation.ErrKeyRetired(id)
	}
	return err
}

// sortedIDs returns the IDs of a target's keys in order of version.
func sortedIDs(states map[string]trust.KeyState) []string {
	var ids []string
	for id := range states {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return ids
}

// versions returns versions of a transit key by ID. It creates the version that follows the
// latest one, and no other.
func (r *Rotator) versions(ctx context.Context, name string, ids []string) ([]keyVersion, error) {
	key, err := readKey(ctx, r.vault, "rotation_key", name)
	if err != nil {
		return nil, err
	}
	var out []keyVersion
	for _, id := range ids {
		if id == keyID(name, key.LatestVersion+1) {
			if _, err := r.vault.call(ctx, "rotate_key", create(transitMount+"/keys/"+name+"/rotate", nil)); err != nil {
				return nil, err
			}
			if key, err = readKey(ctx, r.vault, "rotation_key", name); err != nil {
				return nil, err
			}
		}
		k, err := key.byID(name, id)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// RenewSet implements activities.KeyRotator.
func (r *Rotator) RenewSet(ctx context.Context, newest trust.StoredSet) (set trust.StoredSet, due bool, err error) {
	return r.Renewal(ctx, newest, time.Now())
}

// FinishKey implements activities.KeyRotator: Vault no longer signs with versions below the
// key that replaced another one. If an older version replaced a revoked one, Vault can still sign
// with the revoked version; nodes reject its signatures.
func (r *Rotator) FinishKey(ctx context.Context, of rotation.Rotation) error {
	for _, name := range []string{taskKey(r.env), rootKey(r.env)} {
		before, old := versionOf(name, of.OldKey)
		after, replaced := versionOf(name, of.NewKey)
		if !old || !replaced || after <= before {
			continue
		}
		_, err := r.vault.call(ctx, "finish_key", put(transitMount+"/keys/"+name+"/config", map[string]any{"min_encryption_version": after}))
		return err
	}
	return nil
}
