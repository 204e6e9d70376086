package agent

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
)

// stagedKey is the key of the next identity, stored before it is asked for, with
// the request it is asked with: whoever lost an answer asks for the very same.
// It is kept until the identity's first use, because a repeated request may have
// been answered with another certificate in the stored one's place. Renewal and
// recovery share one, because a lost renewal may have to be a recovery next, and
// the server knows the key by then. An enrolment's is bound to its token and lies
// beside it: the server may have given a recovery token to the other.
type stagedKey struct {
	// Token is the digest of the enrolment's token, "" for the next identity of
	// an enrolled node.
	Token       string `json:"token,omitempty"`
	Incarnation int64  `json:"incarnation"` // 0 for an enrolment
	Key         string `json:"key"`
	CSR         string `json:"csr"`
	SPKI        string `json:"spki"` // hex SHA-256 of the public key
}

// The names of keys in the state folder.
const (
	stagedFile      = "next-key.json"
	stagedEnrolment = "enroll-key.json"
	recoveryKeyFile = "recovery-key.pem"
)

// tokenDigest names a token without telling it.
func tokenDigest(token string) string {
	sum := sha256.Sum256([]byte("gpuaas agent token\n" + token))
	return hex.EncodeToString(sum[:])
}

// keyRing makes and keeps the keys that are in no version.
type keyRing struct {
	state stateDir
}

// staged returns the stored key for the purpose, or makes and stores one. A
// stored key of another purpose, and one that used holds already, is wiped.
func (r keyRing) staged(token string, incarnation int64, used func(spki string) bool) (stagedKey, error) {
	path := r.path(token)
	var k stagedKey
	data, err := r.state.disk.system().ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return k, fmt.Errorf("reading the staged key: %w", err)
	default:
		err := json.Unmarshal(data, &k)
		if err == nil {
			_, err = parseKey([]byte(k.Key))
		}
		if err == nil && k.Token == token && k.Incarnation == incarnation && !used(k.SPKI) {
			return k, nil
		}
		if err := r.state.disk.system().Wipe(path); err != nil {
			return k, fmt.Errorf("wiping an old staged key: %w", err)
		}
	}
	if k, err = newStagedKey(); err != nil {
		return k, err
	}
	k.Token, k.Incarnation = token, incarnation
	if err := r.state.writeJSON(path, k); err != nil {
		return k, fmt.Errorf("storing the staged key: %w", err)
	}
	return k, nil
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
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return stagedKey{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return stagedKey{}, err
	}
	spki := sha256.Sum256(public)
	return stagedKey{
		Key:  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		CSR:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
		SPKI: hex.EncodeToString(spki[:]),
	}, nil
}

// path is where the key for a token's enrolment lies, or that for the next
// identity.
func (r keyRing) path(token string) string {
	if token != "" {
		return r.state.file(stagedEnrolment)
	}
	return r.state.file(stagedFile)
}

// unstage wipes the staged keys that belong to an identity, which was used.
func (r keyRing) unstage(spki string) error {
	var faults []error
	for _, name := range []string{stagedFile, stagedEnrolment} {
		var k stagedKey
		if ok, err := r.state.readJSON(r.state.file(name), &k); err == nil && ok && k.SPKI == spki {
			faults = append(faults, r.state.disk.system().Wipe(r.state.file(name)))
		}
	}
	return errors.Join(faults...)
}

// awaits reports whether an identity's key lies staged still, so that it was
// never used, and whether for an enrolment or for another request.
func (r keyRing) awaits(spki string) (enrolment, other bool) {
	for _, name := range []string{stagedFile, stagedEnrolment} {
		var k stagedKey
		if ok, err := r.state.readJSON(r.state.file(name), &k); err == nil && ok && k.SPKI == spki {
			enrolment, other = enrolment || k.Token != "", other || k.Token == ""
		}
	}
	return enrolment, other
}

// recovery returns the node's recovery key; nil when there is none.
func (r keyRing) recovery() (ed25519.PrivateKey, error) {
	text, err := r.state.disk.system().ReadFile(r.state.file(recoveryKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the recovery key does not read")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the recovery key does not read: %w", err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("the recovery key is of another kind")
	}
	return key, nil
}

// ensureRecovery returns the recovery key, making it before the first
// enrolment. One that does not read is replaced: the enrolment under way tells
// the server of the new one.
func (r keyRing) ensureRecovery() (ed25519.PrivateKey, error) {
	if key, err := r.recovery(); err == nil && key != nil {
		return key, nil
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := r.state.disk.write(r.state.file(recoveryKeyFile), text); err != nil {
		return nil, fmt.Errorf("storing the recovery key: %w", err)
	}
	return key, nil
}

// wipe takes every key away.
func (r keyRing) wipe() error {
	return errors.Join(r.state.disk.system().Wipe(r.state.file(stagedFile)),
		r.state.disk.system().Wipe(r.state.file(stagedEnrolment)), r.state.disk.system().Wipe(r.state.file(recoveryKeyFile)))
}

// signed is the base64 signature of a statement.
func signed(key ed25519.PrivateKey, statement []byte) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(key, statement))
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("not a P-256 key")
	}
	return ec, nil
}
