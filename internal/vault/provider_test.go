package vault

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/harness"
)

// storeCredential stores the secret of the provider maas. A new engine of version 2 rejects requests
// until it has prepared its storage.
func (b *bench) storeCredential(t *testing.T, fields map[string]any) {
	t.Helper()
	harness.Eventually(t, "a write of the credential", func() bool {
		_, err := b.Root(t).Logical().WriteWithContext(t.Context(), "kv-providers/data/maas", map[string]any{"data": fields})
		if e, ok := errors.AsType[*api.ResponseError](err); ok && e.StatusCode == http.StatusBadRequest {
			return false
		}
		require.NoError(t, err)
		return true
	})
}

func threeParts(s string) bool { return len(strings.Split(s, ":")) == 3 }

// TestProviderCredential: each call returns the credential that Vault has now. A missing or malformed
// one names the command that stores it, and no error quotes it.
func TestProviderCredential(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	refused := func(message string) {
		t.Helper()
		_, err := c.ProviderCredential(t.Context(), "maas", threeParts)
		requireKind(t, err, schema.KindProviderRefused, machine.ReasonAuth)
		require.ErrorContains(t, err, message)
		require.Contains(t, schema.AsError(err).Next, "vault kv put -mount=kv-providers maas api_key=-")
		require.NotContains(t, err.Error()+b.log.String(), canary)
	}
	refused("has no credential of provider maas")
	for _, fields := range []map[string]any{{"token": canary + ":a:b"}, {}} {
		b.storeCredential(t, fields)
		refused("has no credential")
	}
	for _, value := range []any{canary, "", 7, []string{canary + ":a:b"}, nil} {
		b.storeCredential(t, map[string]any{"api_key": value})
		refused("has a malformed credential")
	}
	for _, key := range []string{"a:b:" + canary, "d:e:" + canary} {
		b.storeCredential(t, map[string]any{"api_key": key + "\n", "note": "of the user gpuaas"})
		got, err := c.ProviderCredential(t.Context(), "maas", threeParts)
		require.NoError(t, err)
		require.Equal(t, key, got.Reveal())
	}
	_, err := b.Root(t).Logical().DeleteWithContext(t.Context(), "kv-providers/data/maas")
	require.NoError(t, err)
	refused("has no credential")

	_, err = c.ProviderCredential(t.Context(), "other", threeParts)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonDenied)
	b.Seal(t)
	_, err = c.ProviderCredential(t.Context(), "maas", threeParts)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonSealed)
	require.ErrorContains(t, err, "reading the credential of a provider: Vault at "+b.Address)
	b.Unseal(t)
	b.Stop(t)
	_, err = c.ProviderCredential(t.Context(), "maas", threeParts)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonUnreachable)
}

// TestSetupRejectsAnotherEngine: setup keeps the secrets of an engine that it did not mount, and
// rejects one that does not keep versions.
func TestSetupRejectsAnotherEngine(t *testing.T) {
	b := empty(t)
	require.NoError(t, b.Root(t).Sys().MountWithContext(t.Context(), providerMount, &api.MountInput{Type: "kv", Options: map[string]string{"version": "1"}}))
	err := b.install.setup(t)
	requireKind(t, err, schema.KindInvalidRequest, "")
	require.ErrorContains(t, err, "needs version 2")
	require.Contains(t, schema.AsError(err).Next, "vault kv enable-versioning kv-providers")
}
