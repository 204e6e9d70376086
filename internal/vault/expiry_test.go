package vault

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// setupWith runs a setup with limits of the logins.
func (b *bench) setupWith(t *testing.T, l Logins) {
	t.Helper()
	conf := b.install.AdminConfig
	conf.Logins = l
	admin, err := NewAdmin(conf)
	require.NoError(t, err)
	require.NoError(t, admin.Setup(t.Context(), b.install.names, b.dir))
}

func (b *bench) secretIDs(t *testing.T) (worker, api string) {
	t.Helper()
	return readText(t, filepath.Join(b.dir, "worker-secret-id")), readText(t, filepath.Join(b.dir, "api-secret-id"))
}

// A setup replaces secret IDs that have no end, and keeps those with at least half of
// their life. The process reads the end of its own.
func TestSecretIDsEnd(t *testing.T) {
	b := prepared(t)
	endless, _ := b.secretIDs(t)
	b.setupWith(t, Logins{SecretIDTTL: time.Hour})
	first, _ := b.secretIDs(t)
	require.NotEqual(t, endless, first)
	b.setupWith(t, Logins{SecretIDTTL: time.Hour})
	kept, _ := b.secretIDs(t)
	require.Equal(t, first, kept)

	c := b.login(t, "worker")
	life, err := c.expiry.life(t.Context())
	require.NoError(t, err)
	require.Equal(t, time.Hour, life.Ends.Sub(life.Created).Round(time.Second))
	_, err = c.expiry.check(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.SecretIDFault())

	b.write(t, "auth/approle/role/gpuaas-worker/secret-id/destroy", map[string]any{"secret_id": kept})
	_, err = c.expiry.check(t.Context())
	require.NoError(t, err)
	requireKind(t, c.SecretIDFault(), schema.KindServiceUnavailable, ReasonSecretIDExpires)
	require.Equal(t, "gpuaas admin rotate-secret-ids", schema.AsError(c.SecretIDFault()).Next)
	b.setupWith(t, Logins{SecretIDTTL: time.Hour})
	_, err = c.expiry.check(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.SecretIDFault())
}

func TestSecretIDIsDueByItsShare(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	l := secretIDLife{Created: now.Add(-75 * time.Minute), Ends: now.Add(25 * time.Minute)}
	left, due := l.left(now, expiryShare)
	require.Equal(t, 25*time.Minute, left)
	require.False(t, due)
	_, due = l.left(now.Add(time.Second), expiryShare)
	require.True(t, due)
}

// A token with the policy gpuaas-secret-ids replaces all files, with which its holder can log
// in as each of the processes, and may do nothing else. The secret IDs before remain valid.
func TestRotateSecretIDs(t *testing.T) {
	b := prepared(t)
	worker, apiID := b.secretIDs(t)
	token, err := b.Root(t).Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{"gpuaas-secret-ids"}, NoDefaultPolicy: true})
	require.NoError(t, err)
	conf := b.install.AdminConfig
	conf.TokenFile = filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(conf.TokenFile, []byte(token.Auth.ClientToken), 0o600))
	admin, err := NewAdmin(conf)
	require.NoError(t, err)
	running := b.login(t, "worker")
	require.NoError(t, admin.RotateSecretIDs(t.Context(), b.dir))
	newWorker, newAPI := b.secretIDs(t)
	require.NotEqual(t, worker, newWorker)
	require.NotEqual(t, apiID, newAPI)
	require.NoError(t, running.replaceToken(t.Context(), running.api.Token()))
	b.login(t, "api")
	rotator, err := LoginRotator(t.Context(), b.config("rotator"))
	require.NoError(t, err)
	rotator.Close()
	for _, id := range []string{worker, newWorker} {
		_, err := lookUpSecretID(t.Context(), running, "auth/approle/role/gpuaas-worker", id)
		require.NoError(t, err)
	}
	for _, r := range []request{get("auth/approle/role/gpuaas-worker/role-id"), put("auth/approle/role/gpuaas-worker", map[string]any{"token_policies": "root"}),
		get("transit/keys/task-test"), put("auth/token/create", nil)} {
		_, err := admin.send(t.Context(), r)
		require.True(t, isDenied(err), "%s: %v", r.path, err)
	}
}

// A process of another network cannot log in with a copy of the files.
func TestLoginsAreBoundToNetworks(t *testing.T) {
	b := prepared(t)
	b.setupWith(t, Logins{WorkerCIDRs: []string{"192.0.2.0/24"}, APICIDRs: []string{"127.0.0.0/8"}})
	b.login(t, "api")
	_, err := Login(t.Context(), b.config("worker"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
	b.setupWith(t, Logins{})
	b.login(t, "worker")
}
