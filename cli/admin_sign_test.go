package cli

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestSignAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "agent": "binary", "bad": "no key",
	} {
		require.NoError(t, os.WriteFile(file(name), []byte(text), 0o600))
	}
	h := setup(t)
	require.Zero(t, h.run("admin", "sign-agent", file("agent"), "--version", "v2.0.0", "--key", file("key"), "--to", dir, "-o", "json"), h.err.String())
	var out signedAgent
	require.NoError(t, json.Unmarshal(h.out.Bytes(), &out))
	keys, err := trust.ParseReleaseKeys(out.PublicKey)
	require.NoError(t, err)
	document, err := os.ReadFile(file("v2.0.0.json"))
	require.NoError(t, err)
	r, err := trust.OpenRelease(document, keys)
	require.NoError(t, err)
	require.Equal(t, trust.Release{V: 1, Version: "v2.0.0", Size: 6, SHA256: schema.SHA256Hex([]byte("binary"))}, r)
	binary, err := os.ReadFile(file(r.SHA256))
	require.NoError(t, err)
	require.Equal(t, "binary", string(binary))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 5, "no temporary file is left")

	sign := []string{"admin", "sign-agent", file("agent"), "--version", "v2.0.0", "--key", file("key"), "--to", dir}
	require.Zero(t, setup(t).run(sign...), "the same binary may be signed again")
	require.NoError(t, os.WriteFile(file("agent"), []byte("another"), 0o600))
	h = setup(t)
	require.Equal(t, schema.ExitRefused, h.run(sign...))
	require.Contains(t, h.err.String(), "v2.0.0.json is that of another binary of version v2.0.0")
	require.Contains(t, h.err.String(), "--force")
	kept, err := os.ReadFile(file("v2.0.0.json"))
	require.NoError(t, err)
	kept, err = trust.EnvelopeBody(kept)
	require.NoError(t, err)
	require.Contains(t, string(kept), r.SHA256)
	require.Zero(t, setup(t).run(append(sign, "--force")...))
	document, err = os.ReadFile(file("v2.0.0.json"))
	require.NoError(t, err)
	forced, err := trust.OpenRelease(document, keys)
	require.NoError(t, err)
	require.Equal(t, schema.SHA256Hex([]byte("another")), forced.SHA256)

	for _, args := range [][]string{
		{file("agent"), "--key", file("key")}, {file("agent"), "--version", "v2"}, {file("agent"), "--version", "../v2", "--key", file("key")},
	} {
		require.Equal(t, schema.ExitUsage, setup(t).run(append([]string{"admin", "sign-agent"}, args...)...), args)
	}
	h = setup(t)
	require.Equal(t, schema.ExitFailed, h.run("admin", "sign-agent", file("agent"), "--version", "v2", "--key", file("bad"), "--to", dir))
	require.NotContains(t, h.err.String(), "no key", "the file may hold a key")
}
