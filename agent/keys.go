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
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
)

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
