package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/testkit/need"
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

// TestVerifyCommands runs the commands of docs/release.md on a signed release, and on a
// changed one.
func TestVerifyCommands(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"jq", "openssl", "sha256sum"} {
		need.Program(t, program, "install it")
	}
	page, err := os.ReadFile("../../docs/release.md")
	require.NoError(t, err)
	_, commands, ok := strings.Cut(string(page), "<!-- verify -->\n```\n")
	require.True(t, ok)
	commands, _, _ = strings.Cut(commands, "```")
	r := newTestRelease(t)
	r.key = newKey(t)
	write(t, filepath.Join(r.out, "gpuaas_1.2.3_linux_amd64.tar.gz"), "artifact")
	write(t, filepath.Join(r.out, "not-downloaded"), "artifact")
	require.NoError(t, r.buildChecksums(t.Context()))
	require.NoError(t, os.Remove(filepath.Join(r.out, "not-downloaded")))
	public, err := os.ReadFile(filepath.Join(filepath.Dir(r.key), "public.pem"))
	require.NoError(t, err)
	write(t, filepath.Join(r.out, "gpuaas-release.pem"), string(public))
	verify := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
		cmd.Dir = r.out
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := verify()
	require.NoError(t, err, out)
	require.Contains(t, out, "Signature Verified Successfully")
	require.Contains(t, out, "gpuaas_1.2.3_linux_amd64.tar.gz: OK")
	write(t, filepath.Join(r.out, "gpuaas_1.2.3_linux_amd64.tar.gz"), "changed")
	out, err = verify()
	require.Error(t, err, out)
	require.NoError(t, resum(t, r))
	out, err = verify()
	require.Error(t, err, "checksums that the key did not sign: %s", out)
}

// resum replaces the checksums, and leaves the signature.
func resum(t *testing.T, r *release) error {
	t.Helper()
	signature := filepath.Join(r.out, checksumsFile+".dsse.json")
	signed, err := os.ReadFile(signature)
	require.NoError(t, err)
	require.True(t, json.Valid(signed))
	unsigned := *r
	unsigned.key = ""
	require.NoError(t, unsigned.buildChecksums(t.Context()))
	require.NoFileExists(t, signature, "an unsigned build has no signature")
	return os.WriteFile(signature, signed, 0o600)
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
