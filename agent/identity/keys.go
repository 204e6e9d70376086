package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
)

// The names of keys in the state folder.
const (
	stagedFile      = "next-key.json"
	recoveryKeyFile = "recovery-key.pem"
	// nextRecoveryFile holds the recovery key of an enrollment under way.
	nextRecoveryFile = "next-recovery-key.json"
)

// tokenDigest identifies a token without revealing it.
func tokenDigest(token string) string {
	return schema.SHA256Hex([]byte("gpuaas agent token\n" + token))
}

// keyRing creates and stores the keys that belong to no version.
type keyRing struct {
	state disk.StateDir
}

// recovery returns the node's recovery key; nil when there is none.
func (r keyRing) recovery() (ed25519.PrivateKey, error) {
	text, err := r.state.ReadFile(r.state.File(recoveryKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	key, err := parseKey[ed25519.PrivateKey](text)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the recovery key: %w", err)
	}
	return key, nil
}

// nextRecovery returns the recovery key of an enrollment with a token. Each enrollment makes a
// new one, so that a copy of the node's files from before proves nothing, and each attempt with
// the same token uses the same one.
func (r keyRing) nextRecovery(token string) (ed25519.PrivateKey, error) {
	var s stagedRecovery
	if ok, err := r.state.ReadJSON(r.state.File(nextRecoveryFile), &s); err == nil && ok && s.Token == token {
		if key, err := parseKey[ed25519.PrivateKey]([]byte(s.Key)); err == nil {
			return key, nil
		}
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	text, err := formatKey(key)
	if err == nil {
		err = r.state.WriteJSON(r.state.File(nextRecoveryFile), stagedRecovery{Token: token, Key: string(text)})
	}
	if err != nil {
		return nil, fmt.Errorf("storing the next recovery key: %w", err)
	}
	return key, nil
}

// stagedRecovery is the recovery key of an enrollment under way. Token is the token's digest.
type stagedRecovery struct {
	Token string `json:"token"`
	Key   string `json:"key"`
}

// takeRecovery replaces the node's recovery key once the server has the next one.
func (r keyRing) takeRecovery(key ed25519.PrivateKey) error {
	text, err := formatKey(key)
	if err == nil {
		err = r.state.Write(r.state.File(recoveryKeyFile), text)
	}
	if err != nil {
		return fmt.Errorf("storing the recovery key: %w", err)
	}
	return nil
}

// dropNextRecovery removes the key of an enrollment that succeeded.
func (r keyRing) dropNextRecovery() error { return r.state.Wipe(r.state.File(nextRecoveryFile)) }

// wipe removes every key.
func (r keyRing) wipe() error {
	return errors.Join(r.state.Wipe(r.state.File(stagedFile)), r.state.Wipe(r.state.File(recoveryKeyFile)), r.dropNextRecovery())
}

// signed is the base64 signature of a statement.
func signed(key ed25519.PrivateKey, statement []byte) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(key, statement))
}

// formatKey returns a private key in PEM.
func formatKey(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// parseKey parses a private key of type K in PEM.
func parseKey[K any](text []byte) (key K, err error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return key, errors.New("no PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return key, err
	}
	key, ok := parsed.(K)
	if !ok {
		return key, fmt.Errorf("the key is a %T, want %T", parsed, key)
	}
	return key, nil
}
