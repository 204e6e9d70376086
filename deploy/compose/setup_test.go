package compose

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// TestSetup runs setup.sh twice in a copy of the folder. It writes each secret of compose.yaml, changes
// none in the second run, and signs the tokens of Temporal.
func TestSetup(t *testing.T) {
	t.Parallel()
	need.Program(t, "openssl", "install openssl")
	folder := t.TempDir()
	script := filepath.Join(folder, "setup.sh")
	require.NoError(t, os.WriteFile(script, []byte(read(t, "setup.sh")), 0o600))
	secret := func(name string) string { return read(t, filepath.Join(folder, "secrets", name)) }
	run := func(args ...string) error {
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{script}, args...)...).CombinedOutput()
		t.Log(string(out))
		return err
	}
	require.Error(t, run("1.2.3"))
	require.NoError(t, run("1.2.3", "gpuaas.example.com"))
	require.Equal(t, "GPUAAS_VERSION=1.2.3\nNODE_API_NAME=gpuaas.example.com\n", read(t, filepath.Join(folder, ".env")))
	info, err := os.Stat(filepath.Join(folder, "secrets"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	first := map[string]string{}
	seen := map[string]string{}
	for name, s := range load(t).Secrets {
		require.Equal(t, "./secrets/"+name, s.File)
		info, err := os.Stat(filepath.Join(folder, s.File))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o644), info.Mode().Perm(), name)
		first[name] = secret(name)
		require.Greater(t, len(first[name]), 40, name)
		require.Empty(t, seen[first[name]], name)
		seen[first[name]] = name
	}
	info, err = os.Stat(filepath.Join(folder, "secrets", "temporal-signing-key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Equal(t, "postgres://gpuaas_worker:"+strings.TrimSpace(first["password-worker"])+"@postgres:5432/gpuaas?sslmode=disable\n", first["url-worker"])

	for subject, permissions := range map[string][]string{"setup": {"temporal-system:admin", "gpuaas:admin"}, "worker": {"gpuaas:write"}, "api": {"gpuaas:write"}} {
		claims := verified(t, secret("temporal-jwks"), strings.TrimSpace(first["temporal-token-"+subject]))
		assert.Equal(t, permissions, claims.Permissions)
		assert.Equal(t, "gpuaas-compose", claims.Audience)
		assert.InDelta(t, time.Now().AddDate(1, 0, 0).Unix(), claims.Ends, 2*86400)
	}
	// What the operator added to .env survives an upgrade: with another port, no node reaches the node API.
	environment := filepath.Join(folder, ".env")
	require.NoError(t, os.WriteFile(environment, []byte(read(t, environment)+"NODE_API_PORT=443\n# the agent\nGPUAAS_AGENT_OCI_REF=r/a@sha256:1\n"), 0o600))
	require.NoError(t, run("1.2.4", "gpuaas.example.com"))
	assert.Equal(t, "GPUAAS_VERSION=1.2.4\nNODE_API_NAME=gpuaas.example.com\nNODE_API_PORT=443\n# the agent\nGPUAAS_AGENT_OCI_REF=r/a@sha256:1\n", read(t, environment))
	for name, before := range first {
		if !strings.HasPrefix(name, "temporal-token-") {
			assert.Equal(t, before, secret(name), name)
		}
	}
}

type claims struct {
	Audience    string   `json:"aud"`
	Ends        int64    `json:"exp"`
	Permissions []string `json:"permissions"`
}

// verified returns the claims of a token that the key of a JWKS signed.
func verified(t *testing.T, jwks, token string) (c claims) {
	t.Helper()
	var set struct {
		Keys []struct{ Kty, Kid, Alg, E, N string }
	}
	require.NoError(t, json.Unmarshal([]byte(jwks), &set))
	require.Len(t, set.Keys, 1)
	key := set.Keys[0]
	require.Equal(t, []string{"RSA", "compose", "RS256", "AQAB"}, []string{key.Kty, key.Kid, key.Alg, key.E})
	decode := func(text string) []byte {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		require.NoError(t, err)
		return raw
	}
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	public := &rsa.PublicKey{N: new(big.Int).SetBytes(decode(key.N)), E: 65537}
	require.NoError(t, rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], decode(parts[2])))
	require.JSONEq(t, `{"alg":"RS256","kid":"compose","typ":"JWT"}`, string(decode(parts[0])))
	require.NoError(t, json.Unmarshal(decode(parts[1]), &c))
	return c
}

// TestScripts: the shell can parse each script.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"setup.sh", "postgres/roles.sh", "temporal/schema.sh", "vault/unseal.sh", "vault/logins.sh"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-n", script).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}
