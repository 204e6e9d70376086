package worker

import (
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/test/harness"
)

// withMAAS returns the configuration of a worker with MAAS, whose API key comes from the sources.
func withMAAS(t *testing.T, url string, sources map[string]string) (*config, error) {
	t.Helper()
	vars := map[string]string{"GPUAAS_DATABASE_URL": "postgres://u:p@h/db?sslmode=require", "GPUAAS_ENV": "test", "VAULT_ADDR": "https://v",
		"GPUAAS_VAULT_KUBERNETES_ROLE": "gpuaas-worker", "MAAS_API_BASE_URL": url, "GPUAAS_NODE_PUBLIC_URL": "https://node-api.test:8443"}
	maps.Copy(vars, sources)
	c := defaults()
	return c, daemon.Load(c, env(vars))
}

// TestOneSourceOfTheKey: the API key of MAAS has exactly one source.
func TestOneSourceOfTheKey(t *testing.T) {
	t.Parallel()
	const key, vault = "consumer:token:topsecret", "GPUAAS_MAAS_TOKEN_VAULT"
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte(key), 0o600))
	for _, c := range []struct {
		sources map[string]string
		fault   string
	}{
		{map[string]string{"MAAS_API_TOKEN": key}, ""},
		{map[string]string{"MAAS_API_TOKEN_FILE": file}, ""},
		{map[string]string{vault: "true"}, ""},
		{nil, "MAAS_API_TOKEN must have the form consumer:token:secret, or GPUAAS_MAAS_TOKEN_VAULT must be true"},
		{map[string]string{"MAAS_API_TOKEN": key, "MAAS_API_TOKEN_FILE": file}, "MAAS_API_TOKEN and MAAS_API_TOKEN_FILE exclude each other"},
		{map[string]string{"MAAS_API_TOKEN": key, vault: "true"}, "GPUAAS_MAAS_TOKEN_VAULT excludes MAAS_API_TOKEN and MAAS_API_TOKEN_FILE"},
		{map[string]string{"MAAS_API_TOKEN_FILE": file, vault: "true"}, "GPUAAS_MAAS_TOKEN_VAULT excludes MAAS_API_TOKEN and MAAS_API_TOKEN_FILE"},
	} {
		_, err := withMAAS(t, "https://maas.test", c.sources)
		if c.fault == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.fault)
		require.NotContains(t, err.Error(), "topsecret")
	}
}

// storeKey stores an API key of MAAS in Vault, as an operator does.
func (b *bench) storeKey(t *testing.T, key string) {
	t.Helper()
	harness.Eventually(t, "a write of the key", func() bool { // a new engine rejects requests for a moment
		_, err := b.vault.Root(t).Logical().WriteWithContext(t.Context(), "kv-providers/data/maas", map[string]any{"data": map[string]any{"api_key": key}})
		if e, ok := errors.AsType[*api.ResponseError](err); ok && e.StatusCode == http.StatusBadRequest {
			return false
		}
		require.NoError(t, err)
		return true
	})
}

// TestKeyFromVault: the provider of MAAS uses the key that an operator stores in Vault, also if the
// worker runs already.
func TestKeyFromVault(t *testing.T) {
	b := prepared(t)
	site := maastest.New(maastest.Options{})
	t.Cleanup(site.Close)
	c, err := withMAAS(t, site.BaseURL(), map[string]string{"GPUAAS_MAAS_TOKEN_VAULT": "true"})
	require.NoError(t, err)
	scanner := secrets.New()
	c.ProviderSettings.vault = b.login(t)
	c.withholdWith(scanner.Learn)
	provider := c.sources["maas"].Provider
	list := func() *schema.Error {
		_, err := provider.List(t.Context())
		return schema.AsError(err)
	}
	missing := list()
	require.Equal(t, machine.ReasonAuth, missing.Reason)
	require.Contains(t, missing.Next, "vault kv put -mount=kv-providers maas api_key=-")

	b.storeKey(t, "consumer-before:token-before:secret-before")
	require.Equal(t, machine.ReasonAuth, list().Reason, "MAAS rejects it")
	b.vault.Seal(t)
	sealed := list()
	require.Equal(t, []string{string(schema.KindServiceUnavailable), "vault_sealed"}, []string{string(sealed.Kind), sealed.Reason})
	b.vault.Unseal(t)
	b.storeKey(t, site.Key)
	require.Nil(t, list(), "without a restart")
	requireWithheld(t, scanner, site.Key)
	b.vault.Seal(t)
	require.Nil(t, list(), "the key is kept for a minute")
}

// TestPartsOfTheKey: the key of the settings is withheld, too.
func TestPartsOfTheKey(t *testing.T) {
	t.Parallel()
	const key = "consumer-of-settings:token-of-settings:secret-of-settings"
	c, err := withMAAS(t, "https://maas.test", map[string]string{"MAAS_API_TOKEN": key})
	require.NoError(t, err)
	scanner := secrets.New()
	c.withholdWith(scanner.Learn)
	requireWithheld(t, scanner, key)
}

// requireWithheld checks that an API key is known as a secret, and each part that is long enough.
func requireWithheld(t *testing.T, s *secrets.Scanner, key string) {
	t.Helper()
	for part := range strings.SplitSeq(key, ":") {
		require.GreaterOrEqual(t, len(part), 16, "a shorter one would match ordinary text")
		require.Error(t, s.Check("the part is "+part))
	}
	require.Error(t, s.Check("the key is "+key))
}
