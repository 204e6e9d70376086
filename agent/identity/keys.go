package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
)

// The names of keys in the state folder.
const (
	stagedFile       = "next-key.json"
	stagedEnrollment = "enroll-key.json"
	recoveryKeyFile  = "recovery-key.pem"
)

// tokenDigest identifies a token without revealing it.
func tokenDigest(token string) string {
	return text.SHA256Hex([]byte("gpuaas agent token\n" + token))
}

// keyRing creates and stores the keys that belong to no version.
type keyRing struct {
	state disk.StateDir
}

// recovery returns the node's recovery key; nil when there is none.
func (r keyRing) recovery() (ed25519.PrivateKey, error) {
	text, err := r.state.Files.System().ReadFile(r.state.File(recoveryKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("cannot parse the recovery key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the recovery key: %w", err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("the recovery key is not an Ed25519 key")
	}
	return key, nil
}

// ensureRecovery returns the recovery key, making it before the first
// enrollment. An unreadable key is replaced: the enrollment under way sends the new
// one to the server.
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
	if err := r.state.Files.Write(r.state.File(recoveryKeyFile), text); err != nil {
		return nil, fmt.Errorf("storing the recovery key: %w", err)
	}
	return key, nil
}

// wipe removes every key.
func (r keyRing) wipe() error {
	return errors.Join(r.state.Files.System().Wipe(r.state.File(stagedFile)),
		r.state.Files.System().Wipe(r.state.File(stagedEnrollment)), r.state.Files.System().Wipe(r.state.File(recoveryKeyFile)))
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
