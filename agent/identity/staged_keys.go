package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
)

// stagedKey is a key of the next identity. It is stored with its certificate request
// before the request is sent, so that the agent can repeat the same request after a
// lost answer. The server may have bound a token to any key of a request, so each key
// is kept until an identity that was stored later is used. Renewal and
// recovery share theirs, because a lost renewal may have to be a recovery next.
// An enrollment's key is bound to its token.
type stagedKey struct {
	// Token is the digest of the enrollment's token, "" for the next identity of
	// an enrolled node.
	Token       string `json:"token,omitempty"`
	Incarnation int64  `json:"incarnation"` // 0 for an enrollment
	Key         string `json:"key"`
	CSR         string `json:"csr"`
	SPKI        string `json:"spki"` // hex SHA-256 of the public key
	// After is the number of the newest version at the key's last request.
	After int `json:"after"`
}

// maxStaged bounds the keys kept for requests without an answer.
const maxStaged = 8

// load reads the stored keys, the most recently requested key first. A torn file
// contains no key.
func (r keyRing) load() ([]stagedKey, error) {
	var keys []stagedKey
	_, err := r.state.ReadJSON(r.state.File(stagedFile), &keys)
	if unreadable, known := errors.AsType[*fs.PathError](err); known {
		return nil, fmt.Errorf("reading the staged keys: %w", unreadable)
	}
	if err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	return keys, nil
}

// serves reports whether the key can be used for the purpose.
func (k stagedKey) serves(token string, incarnation int64) bool {
	_, err := parseKey[*ecdsa.PrivateKey]([]byte(k.Key))
	return err == nil && k.Token == token && k.Incarnation == incarnation
}

// ask returns the first suitable key for the purpose, or creates one, and records that
// it is requested now.
func (r keyRing) ask(token string, incarnation int64, newest int, fits func(stagedKey) bool) (stagedKey, error) {
	list, err := r.load()
	if err != nil {
		return stagedKey{}, err
	}
	i := slices.IndexFunc(list, func(k stagedKey) bool { return k.serves(token, incarnation) && fits(k) })
	if i == 0 && list[0].After == newest {
		return list[0], nil
	}
	var k stagedKey
	if i >= 0 {
		k = list[i]
		list = slices.Delete(list, i, i+1)
	} else if k, err = newStagedKey(); err != nil {
		return k, err
	}
	k.Token, k.Incarnation, k.After = token, incarnation, newest
	list = append([]stagedKey{k}, list...)
	if err := r.state.WriteJSON(r.state.File(stagedFile), list[:min(len(list), maxStaged)]); err != nil {
		return k, fmt.Errorf("storing the staged key: %w", err)
	}
	return k, nil
}

// dropUsed removes the keys that were requested before a version was stored,
// which is used now: the version's own tokens cannot be bound to them. It keeps a
// file that cannot be read, which may contain a key that a claim is bound to.
func (r keyRing) dropUsed(v *Version) error {
	keys, err := r.load()
	left := slices.DeleteFunc(slices.Clone(keys), func(k stagedKey) bool { return k.After < v.Number })
	switch {
	case err != nil:
		return err
	case len(left) == 0:
		return r.state.Wipe(r.state.File(stagedFile))
	case len(left) < len(keys):
		return r.state.WriteJSON(r.state.File(stagedFile), left)
	}
	return nil
}

// unanswered reports whether a request may have replaced a version that was
// never used: one with the version's own key, or one made after it was stored.
// enrollment is true for the first where it was an enrollment.
func (r keyRing) unanswered(v *Version) (open, enrollment bool) {
	keys, _ := r.load()
	for _, k := range keys {
		own := k.SPKI == v.Facts.SPKI
		open = open || own || k.After >= v.Number
		enrollment = enrollment || own && k.Token != ""
	}
	return open, enrollment
}

// newStagedKey makes a P-256 key and its request. The server takes the key from
// the request and nothing else.
func newStagedKey() (stagedKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return stagedKey{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return stagedKey{}, fmt.Errorf("making the certificate request: %w", err)
	}
	text, err := formatKey(key)
	if err != nil {
		return stagedKey{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return stagedKey{}, err
	}
	return stagedKey{
		Key:  string(text),
		CSR:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
		SPKI: schema.SHA256Hex(public),
	}, nil
}
