package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// newKey writes a key, and its public key as public.pem beside it.
func newKey(t *testing.T) (path string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "key.pem")
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	der, err = x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	write(t, filepath.Join(filepath.Dir(path), "public.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return path
}

// TestSignature: the checksums verify with the code that verifies releases of the agent.
func TestSignature(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	r.key = newKey(t)
	write(t, filepath.Join(r.out, "artifact"), "artifact")
	require.NoError(t, r.buildChecksums(t.Context()))
	envelope, err := os.ReadFile(filepath.Join(r.out, checksumsFile+".dsse.json"))
	require.NoError(t, err)
	opened := func(key string) (string, error) {
		private, err := trust.ReadReleaseKey(key)
		require.NoError(t, err)
		keys, err := trust.ParseReleaseKeys(trust.ReleasePublicKey(private))
		require.NoError(t, err)
		body, _, err := trust.OpenEnvelope(checksumsType, envelope, keys)
		return string(body), err
	}
	body, err := opened(r.key)
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(r.out, checksumsFile))
	require.NoError(t, err)
	require.Equal(t, string(sums), body)
	_, err = opened(newKey(t))
	require.Error(t, err)
}

// TestBadKey: a key that cannot sign fails before the first stage, and never leads to an
// unsigned release.
func TestBadKey(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, filepath.Join(folder, "text.pem"), "text")
	for _, key := range []string{"missing/key.pem", filepath.Join(folder, "text.pem"), folder} {
		var log strings.Builder
		err := run(t.Context(), []string{"-key", key, "-o", filepath.Join(folder, "dist"), "-work", filepath.Join(folder, "work"), "checksums"}, &log)
		require.ErrorContains(t, err, "key")
		require.Empty(t, log.String())
		require.NoDirExists(t, filepath.Join(folder, "dist"))
	}
}

// TestTaskPassesKey: ./task release passes RELEASE_KEY as it is, also a path that does not
// exist.
func TestTaskPassesKey(t *testing.T) {
	t.Parallel()
	tasks, err := os.ReadFile("../../Taskfile.yml")
	require.NoError(t, err)
	require.Contains(t, string(tasks), `-key "${RELEASE_KEY:-}"`)
}
