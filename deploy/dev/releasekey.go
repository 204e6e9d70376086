package dev

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
)

// releaseKey is the key that signs releases of the agent, releasesDir the folder of those
// that the API offers.
func releaseKey(l layout) string  { return l.secret("release-key.pem") }
func releasesDir(l layout) string { return filepath.Join(l.dir, "releases") }

// ensureReleaseKey generates the key of the agent's releases on the first call. Outside of a
// development stack, this key is nowhere near the control plane.
func ensureReleaseKey(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	return statefile.Write(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// releasePublicKey returns the public key of a key file in the form of
// GPUAAS_RELEASE_PUBKEYS.
func releasePublicKey(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", errors.New("the release key is not in PEM form")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return "", errors.New("the release key is not an Ed25519 key")
	}
	public, _ := key.Public().(ed25519.PublicKey) // the type of every such key
	return base64.StdEncoding.EncodeToString(public), nil
}
