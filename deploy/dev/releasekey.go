package dev

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema/trust"
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
	key, err := trust.ReadReleaseKey(file)
	if err != nil {
		return "", err
	}
	return trust.ReleasePublicKey(key), nil
}
