package vault

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// VerifierSetLifetime is the time until a verifier set expires. A set is renewed
// after half of it.
const VerifierSetLifetime = 90 * 24 * time.Hour

// nextMismatch is the next step if Vault's keys differ from the verifier set's.
const nextMismatch = "compare the task key and the root key in Vault with the newest verifier set; restore Vault's backup, because nodes accept no other key"

// followed is a verifier set after its check against Vault.
type followed struct {
	set  trust.VerifierSet
	key  keyVersion // the set's active key
	root keyVersion // the root key that signed the set
	err  error      // the reason why nothing may be signed under the set
	// rootRetired is the reason why Vault does not sign with root.
	rootRetired error
	// roots are the versions of the root key with which Vault signs, the newest one first.
	roots []keyVersion
}

// next returns the set's successor with the same keys. It begins an epoch if begins is set.
// The number of an epoch is its time in milliseconds: an epoch that began after the database
// was restored is then above each one that the database lost.
func (f followed) next(begins bool, now time.Time) trust.VerifierSetDoc {
	d := f.set.Doc
	d.Version, d.PrevHash = d.Version+1, f.set.Hash
	d.IssuedAt, d.ExpiresAt = now.UTC(), now.Add(VerifierSetLifetime).UTC()
	if begins {
		d.Epoch = max(d.Epoch+1, now.UnixMilli())
		if len(d.Roots) == 0 { // the bundle of a node may name only a root key that is not on record
			d.Roots = trust.VerifierKeys{f.root.verifier(trust.KeyRoot)}
		}
	}
	return d
}

// signedBy returns the root key that signs the next set: the first signer that the set itself
// trusts. Signatures are not part of what is signed, so a writer to the database can change
// their order and remove some. A set that names no root key has one such signer.
func signedBy(set trust.VerifierSet, signers []string) (id string, ok bool) {
	if len(set.Doc.Roots) == 0 {
		return signers[0], true
	}
	i := slices.IndexFunc(signers, func(id string) bool {
		return slices.ContainsFunc(set.Doc.Roots, func(k trust.VerifierKey) bool { return k.KeyID == id })
	})
	if i < 0 {
		return "", false
	}
	return signers[i], true
}

// others returns the versions of the root key that sign a set besides root. A set that begins an
// epoch also has the signatures of the newest other versions, as many as an envelope has space for:
// the database may have lost a rotation of the root key, after which nodes trust only a version
// that is not on record. The sets of revocations have them too, because nodes may reject the first
// set after a restore until a lost revocation is repeated.
func (f followed) others(begins bool, root keyVersion) []keyVersion {
	if !begins {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(f.roots), func(k keyVersion) bool { return k.version == root.version })
	return others[:min(len(others), trust.MaxSignatures-2)]
}

// checkSet verifies a stored set with Vault's root key and compares its active key
// with Vault's task key, because the database is not trusted.
func checkSet(ctx context.Context, c caller, env string, stored trust.StoredSet) (followed, error) {
	var f followed
	roots, err := readKey(ctx, c, "set_root", rootKey(env))
	if err != nil {
		return f, err
	}
	set, signers, err := trust.OpenVerifierSet(env, stored.Document, roots.verifiers(rootKey(env)))
	if err != nil {
		return f, badSet(stored.Version, schema.AsError(err).Message)
	}
	if !set.Matches(stored) {
		return f, badSet(stored.Version, "its document has another version, hash or predecessor than its row")
	}
	f.set = set
	signer, ok := signedBy(set, signers)
	if !ok {
		return f, badSet(stored.Version, "no root key that it trusts has signed it")
	}
	if f.root, err = roots.byID(rootKey(env), signer); err != nil {
		return f, err
	}
	f.rootRetired = roots.retired(f.root, set)
	f.roots = roots.signing(rootKey(env))
	tasks, err := readKey(ctx, c, "task_key", taskKey(env))
	if err != nil {
		return f, err
	}
	f.key, err = activeKey(tasks, taskKey(env), set)
	return f, err
}

// signing returns the versions with which Vault signs, the newest one first. It leaves out those
// that Vault does not return, such as versions that were trimmed.
func (k transitKey) signing(name string) (versions []keyVersion) {
	for v := k.LatestVersion; v >= max(k.MinSigning, 1); v-- {
		if version, err := k.version(name, v); err == nil {
			versions = append(versions, version)
		}
	}
	return versions
}

// activeKey returns Vault's version of the set's active key. Both must be equal.
func activeKey(key transitKey, name string, set trust.VerifierSet) (keyVersion, error) {
	want := set.Active()
	held, err := key.byID(name, want.KeyID)
	if err != nil {
		return keyVersion{}, mismatch(set, keyID(name, key.LatestVersion)+" as its newest")
	}
	if !held.public.Equal(want.Public) {
		return keyVersion{}, mismatch(set, held.id()+" "+keyHash(held.public))
	}
	return held, key.retired(held, set)
}

// retired returns an error if Vault no longer signs with a key of the newest set: the key was
// rotated or revoked, and then the database was restored to an earlier time.
func (k transitKey) retired(held keyVersion, set trust.VerifierSet) error {
	if held.version >= k.MinSigning {
		return nil
	}
	return schema.NewError(schema.KindInternal,
		"verifier set %d requires signatures of %s, but Vault signs with versions from %d only: the key was rotated or revoked, and then the database was restored to an earlier time",
		set.Doc.Version, held.id(), k.MinSigning).WithReason(ReasonKeyRetired).WithNext("gpuaas trust revoke " + set.Active().KeyID + " --reason TEXT")
}

// keyHash distinguishes two keys of the same ID.
func keyHash(public []byte) string {
	return "(sha256 " + schema.SHA256Hex(public)[:16] + "…)"
}

func mismatch(set trust.VerifierSet, held string) error {
	want := set.Active()
	return schema.NewError(schema.KindInternal,
		"signing is stopped: the active key of verifier set %d is %s %s, but Vault has %s",
		set.Doc.Version, want.KeyID, keyHash(want.Public), held).WithReason(ReasonKeyMismatch).WithNext(nextMismatch)
}

func badSet(version int64, why string) error {
	return schema.NewError(schema.KindInternal, "verifier set %d is invalid: %s", version, why).
		WithReason(ReasonBadSet).WithNext(nextMismatch)
}

// publisher signs verifier sets.
type publisher struct {
	vault caller
	env   string
}

// First returns version 1, in which the newest version of the task key is active.
func (p publisher) First(ctx context.Context, now time.Time) (trust.StoredSet, error) {
	key, err := p.newest(ctx, taskKey(p.env))
	if err != nil {
		return trust.StoredSet{}, err
	}
	root, err := p.newest(ctx, rootKey(p.env))
	if err != nil {
		return trust.StoredSet{}, err
	}
	return p.sign(ctx, trust.VerifierSetDoc{V: 1, Env: p.env, Version: 1, Keys: trust.VerifierKeys{key.verifier(trust.KeyActive)},
		IssuedAt: now.UTC(), ExpiresAt: now.Add(VerifierSetLifetime).UTC()}, root, key)
}

func (p publisher) newest(ctx context.Context, name string) (keyVersion, error) {
	key, err := readKey(ctx, p.vault, "", name)
	if err != nil {
		return keyVersion{}, err
	}
	return key.version(name, key.LatestVersion)
}

// Renewal returns the successor of a set, with the same keys and a new expiry. It
// returns false if more than half of the set's lifetime is left, unless the database was
// restored, because nodes may have a set that it lost. While the restore mode is on it waits for
// the operator, who repeats lost revocations first. Renewal checks
// the set against Vault first: the root key signs nothing that only the database
// vouches for.
func (p publisher) Renewal(ctx context.Context, set trust.StoredSet, now time.Time) (next trust.StoredSet, due bool, err error) {
	f, err := checkSet(ctx, p.vault, p.env, set)
	if err != nil {
		return next, false, err
	}
	if f.rootRetired != nil {
		return next, false, f.rootRetired
	}
	doc := f.set.Doc
	restored := set.Restored && !set.Restoring
	if !restored && doc.ExpiresAt.Sub(now) > doc.ExpiresAt.Sub(doc.IssuedAt)/2 {
		return next, false, nil
	}
	next, err = p.sign(ctx, f.next(set.Restored, now), f.root, f.key, f.others(set.Restored, f.root)...)
	return next, true, err
}

// publishAttempts limits how often Publish retries after concurrent publications.
const publishAttempts = 3

// Publish publishes the first verifier set, or the successor of the newest set if
// its renewal is due, and returns the newest version. If another process publishes
// a set at the same time, Publish starts over with that set.
func (p publisher) Publish(ctx context.Context, sets SetStore, by audit.Subject, now time.Time) (version int64, err error) {
	for range publishAttempts {
		newest, err := sets.NewestSet(ctx)
		next, due := trust.StoredSet{}, true
		switch {
		case schema.KindOf(err) == schema.KindNotFound:
			next, err = p.First(ctx, now)
		case err == nil:
			next, due, err = p.Renewal(ctx, newest, now)
		}
		if err != nil {
			return 0, err
		}
		if !due {
			return newest.Version, nil
		}
		err = sets.PutSet(ctx, next, by)
		if err == nil {
			return next.Version, nil
		}
		if schema.AsError(err).Reason != "set_outdated" {
			return 0, err
		}
	}
	return 0, schema.NewError(schema.KindServiceUnavailable, "the verifier set changed concurrently; try again").WithNext("gpuaas admin setup")
}

// sign signs a set with a root key, the active key of its predecessor and other versions of the
// root key, all over the same bytes. Version 1 is signed by its own active key.
func (p publisher) sign(ctx context.Context, doc trust.VerifierSetDoc, root, active keyVersion, others ...keyVersion) (trust.StoredSet, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return trust.StoredSet{}, schema.Wrap(schema.KindInternal, err, "encoding a verifier set")
	}
	signers := []dsse.Signer{signer{p.vault, "", root}, signer{p.vault, "", active}}
	for _, k := range others {
		signers = append(signers, signer{p.vault, "", k})
	}
	envelope, err := seal(ctx, trust.VerifierSetPayloadType, body, signers...)
	if err != nil {
		return trust.StoredSet{}, err
	}
	set, err := trust.ParseVerifierSet(envelope)
	if err != nil {
		return trust.StoredSet{}, schema.Wrap(schema.KindInternal, err, "checking the new verifier set %d", doc.Version)
	}
	return set.Stored(), nil
}
