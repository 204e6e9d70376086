package vault

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// SetLife is how long a verifier set is good. A set is renewed when less than
// half of it is left.
const SetLife = 365 * 24 * time.Hour

// maxSetBytes bounds a set's envelope: four keys take a tenth of it.
const maxSetBytes = 64 << 10

// nextMismatch is what helps when Vault's keys are not the verifier set's.
const nextMismatch = "compare the task key and the root key in Vault with the newest verifier set; restore Vault's backup, since nodes accept no other key"

// followed is a verifier set that was checked against Vault.
type followed struct {
	doc  trust.VerifierSetDoc
	hash string
	key  keyVersion // the active one
	root keyVersion // the one that signed it
	err  error      // why nothing may be signed under it
}

// accepts reports whether a node with this set takes signatures of the key.
func (f followed) accepts(id string) bool {
	return slices.ContainsFunc(f.doc.Keys, func(k trust.VerifierSetKey) bool {
		return k.KeyID == id && k.State.Verifies()
	})
}

func (f followed) trust() (trust.TaskTrust, error) {
	t := trust.TaskTrust{
		Roots: []trust.VerifierKey{{KeyID: f.root.id(), Public: f.root.public}},
		Floor: trust.VerifierSetRef{Version: f.doc.Version, Hash: f.hash},
	}
	for _, k := range f.doc.Keys {
		public, err := base64.StdEncoding.Strict().DecodeString(k.Public)
		if err != nil {
			return t, badSet(f.doc.Version, "a key is not base64")
		}
		t.Keys = append(t.Keys, trust.VerifierKey{State: k.State, KeyID: k.KeyID, Public: public})
	}
	t.Roots[0].State = "root"
	return t, nil
}

// check reads the root and the task key and holds the set against both: what
// the database says is believed only as far as Vault's keys bear it out.
func (t transit) check(ctx context.Context, env string, set trust.StoredSet) (followed, error) {
	doc, envelope, err := parseSet(env, set)
	if err != nil {
		return followed{}, err
	}
	f := followed{doc: doc, hash: set.Hash}
	roots, err := t.read(ctx, "set_root", rootKey(env))
	if err != nil {
		return f, err
	}
	if f.root, err = signedBy(roots, rootKey(env), doc.Version, envelope); err != nil {
		return f, err
	}
	tasks, err := t.read(ctx, "task_key", taskKey(env))
	if err != nil {
		return f, err
	}
	f.key, err = activeKey(tasks, taskKey(env), doc)
	return f, err
}

// parseSet reads a set's document and checks it against what is stored with it.
func parseSet(env string, set trust.StoredSet) (trust.VerifierSetDoc, dsse.Envelope, error) {
	var doc trust.VerifierSetDoc
	var envelope dsse.Envelope
	if err := schema.DecodeStrict(set.Document, maxSetBytes, &envelope); err != nil {
		return doc, envelope, badSet(set.Version, "it is no envelope")
	}
	body, err := envelope.DecodeB64Payload()
	if err != nil || envelope.PayloadType != trust.VerifierSetPayloadType || hashOf(body) != set.Hash {
		return doc, envelope, badSet(set.Version, "its type or hash is not what it should be")
	}
	if err := schema.DecodeStrict(body, maxSetBytes, &doc); err != nil {
		return doc, envelope, badSet(set.Version, "its body cannot be read")
	}
	if doc.V != 1 || doc.Env != env || doc.Version != set.Version || doc.Epoch != set.Epoch || doc.PrevHash != set.PrevHash {
		return doc, envelope, badSet(set.Version, "its body says another environment, version or predecessor")
	}
	return doc, envelope, nil
}

// signedBy finds the version of a key that signed the envelope.
func signedBy(key transitKey, name string, setVersion int64, e dsse.Envelope) (keyVersion, error) {
	body, err := e.DecodeB64Payload()
	if err != nil {
		return keyVersion{}, badSet(setVersion, "it is no envelope")
	}
	for _, s := range e.Signatures {
		version, ok := versionOf(name, s.KeyID)
		if !ok {
			continue
		}
		by, err := key.version(name, version)
		if err != nil {
			return by, err
		}
		sig, err := base64.StdEncoding.DecodeString(s.Sig)
		if err == nil && ed25519.Verify(by.public, dsse.PAE(e.PayloadType, body), sig) {
			return by, nil
		}
	}
	return keyVersion{}, badSet(setVersion, "Vault's key "+name+" did not sign it")
}

// activeKey is Vault's version of the set's active key, which must be the same.
func activeKey(key transitKey, name string, doc trust.VerifierSetDoc) (keyVersion, error) {
	i := slices.IndexFunc(doc.Keys, func(k trust.VerifierSetKey) bool { return k.State == trust.KeyActive })
	if i < 0 {
		return keyVersion{}, badSet(doc.Version, "it has no active key")
	}
	want := doc.Keys[i]
	version, ok := versionOf(name, want.KeyID)
	held, err := key.version(name, version)
	if !ok || err != nil {
		return keyVersion{}, mismatch(doc, want, keyID(name, key.LatestVersion)+" as its newest")
	}
	if base64.StdEncoding.EncodeToString(held.public) != want.Public {
		return keyVersion{}, mismatch(doc, want, held.id()+" "+fingerprint(base64.StdEncoding.EncodeToString(held.public)))
	}
	return held, nil
}

// fingerprint tells two keys of the same id apart.
func fingerprint(public string) string { return "(sha256 " + hashOf([]byte(public))[:16] + "…)" }

func mismatch(doc trust.VerifierSetDoc, want trust.VerifierSetKey, held string) error {
	return schema.NewError(schema.KindInternal,
		"signing is stopped: the active key of verifier set %d is %s %s, and Vault holds %s",
		doc.Version, want.KeyID, fingerprint(want.Public), held).WithReason(ReasonKeyMismatch).WithNext(nextMismatch)
}

func badSet(version int64, why string) error {
	return schema.NewError(schema.KindInternal, "verifier set %d is not good: %s", version, why).
		WithReason(ReasonBadSet).WithNext(nextMismatch)
}

// stops reports whether an error of check means that nothing may be signed, and
// not only that Vault is away.
func stops(err error) bool {
	return slices.Contains([]string{ReasonKeyMismatch, ReasonNoKey, ReasonBadSet}, reasonOf(err))
}

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// SetSigner makes and signs verifier sets with a privileged token, one that has
// the policy gpuaas-sets at least.
type SetSigner struct{ s *setup }

// NewSetSigner prepares a signer of an environment's sets; it sends nothing yet.
func NewSetSigner(a AdminConfig, env string) (*SetSigner, error) {
	if err := checkEnv(env); err != nil {
		return nil, err
	}
	s, err := newSetup(a)
	if err != nil {
		return nil, err
	}
	s.env = env
	return &SetSigner{s}, nil
}

// First makes version 1: the newest version of the task key, active.
func (s *SetSigner) First(ctx context.Context, now time.Time) (trust.StoredSet, error) {
	tasks, err := s.s.transit().read(ctx, "reading the task key", taskKey(s.s.env))
	if err != nil {
		return trust.StoredSet{}, err
	}
	key, err := tasks.version(taskKey(s.s.env), 0)
	if err != nil {
		return trust.StoredSet{}, err
	}
	roots, err := s.s.transit().read(ctx, "reading the root key of verifier sets", rootKey(s.s.env))
	if err != nil {
		return trust.StoredSet{}, err
	}
	root, err := roots.version(rootKey(s.s.env), 0)
	if err != nil {
		return trust.StoredSet{}, err
	}
	return s.signSet(ctx, trust.VerifierSetDoc{V: 1, Env: s.s.env, Version: 1, Keys: []trust.VerifierSetKey{
		{KeyID: key.id(), Public: base64.StdEncoding.EncodeToString(key.public), State: trust.KeyActive},
	}, IssuedAt: now.UTC(), ExpiresAt: now.Add(SetLife).UTC()}, followed{key: key, root: root})
}

// Renewal returns the successor of a set, with the same keys and a new life, or
// false when more than half of the set's own life is left. The set is checked
// against Vault first: the root signs nothing on the database's word alone.
func (s *SetSigner) Renewal(ctx context.Context, set trust.StoredSet, now time.Time) (next trust.StoredSet, due bool, err error) {
	f, err := s.s.transit().check(ctx, s.s.env, set)
	if err != nil {
		return next, false, err
	}
	if f.doc.ExpiresAt.Sub(now) > f.doc.ExpiresAt.Sub(f.doc.IssuedAt)/2 {
		return next, false, nil
	}
	doc := f.doc
	doc.Version, doc.PrevHash = doc.Version+1, f.hash
	doc.IssuedAt, doc.ExpiresAt = now.UTC(), now.Add(SetLife).UTC()
	next, err = s.signSet(ctx, doc, f)
	return next, true, err
}

// signSet signs a document with the root and the active key of its predecessor,
// both over the same bytes. by is the checked predecessor; of version 1 it is
// the set itself.
func (s *SetSigner) signSet(ctx context.Context, doc trust.VerifierSetDoc, by followed) (trust.StoredSet, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return trust.StoredSet{}, schema.Wrap(schema.KindInternal, err, "rendering a verifier set")
	}
	t, doing := s.s.transit(), "signing a verifier set"
	envelope, err := seal(ctx, trust.VerifierSetPayloadType, body, signer{t, doing, by.root}, signer{t, doing, by.key})
	if err != nil {
		return trust.StoredSet{}, err
	}
	return trust.StoredSet{Version: doc.Version, Epoch: doc.Epoch, Hash: hashOf(body), PrevHash: doc.PrevHash, Document: envelope}, nil
}
