package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
	"github.com/gpuaas/gpuaas/test/testkit/vaulttest"
)

var sharedVault vaulttest.Shared

func TestMain(m *testing.M) {
	defer sharedTemporal.Close()
	sharedVault.Run(m)
}

// bench is a database and a Vault that a setup has prepared.
type bench struct {
	vault  *vaulttest.Server
	store  *store.Store
	url    string
	dir    string
	config setupConfig
}

func prepared(t *testing.T) *bench {
	t.Helper()
	b := &bench{vault: sharedVault.Get(t), url: pgtest.New(t, store.Migrate), dir: t.TempDir()}
	root := b.vault.Root(t)
	for _, mount := range []string{"pki-node", "pki-api", "transit", "kv-providers"} {
		require.NoError(t, root.Sys().Unmount(mount))
	}
	b.config = setupConfig{DatabaseURL: schema.NewSecret(b.url), VaultAddr: b.vault.Address, VaultTokenFile: b.vault.TokenFile,
		OutDir: b.dir, Env: "test", NodeAPINames: []string{"localhost"}}
	require.NoError(t, b.admin(t).Setup(t.Context(), b.config.NodeAPINames, b.dir))
	var err error
	b.store, err = store.Open(t.Context(), store.Config{URL: b.processURL()})
	require.NoError(t, err)
	t.Cleanup(b.store.Close)
	return b
}

// processURL is the database with the privileges of the worker.
func (b *bench) processURL() string { return pgtest.As(b.url, store.RoleWorker) }

func (b *bench) login(t *testing.T) *vault.Client {
	t.Helper()
	c, err := vault.Login(t.Context(), vault.Config{Address: b.vault.Address, Env: "test", Log: slog.New(slog.DiscardHandler),
		RoleIDFile: filepath.Join(b.dir, "worker-role-id"), SecretIDFile: filepath.Join(b.dir, "worker-secret-id")})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func (b *bench) admin(t *testing.T) *vault.Admin {
	t.Helper()
	a, err := vault.NewAdmin(b.config.vaultAdmin(io.Discard))
	require.NoError(t, err)
	return a
}

func (b *bench) publish(t *testing.T) (version int64, err error) {
	t.Helper()
	return publishVerifierSet(t.Context(), b.config, b.admin(t))
}

// A second setup changes nothing. A setup late in the set's lifetime publishes a
// successor with the same keys.
func TestSetupPublishesSets(t *testing.T) {
	b := prepared(t)
	for range 2 {
		version, err := b.publish(t)
		require.NoError(t, err)
		require.Equal(t, int64(1), version)
	}
	first, err := b.store.Identities.NewestSet(t.Context())
	require.NoError(t, err)
	version, err := b.admin(t).Publish(t.Context(), b.store.Identities, audit.Subject{Actor: setupActor}, time.Now().Add(vault.VerifierSetLifetime*2/3))
	require.NoError(t, err)
	require.Equal(t, int64(2), version)
	all, err := b.store.Identities.SetsAfter(t.Context(), 0, 64)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, first, all[0])
	require.Equal(t, first.Hash, all[1].PrevHash)
	require.NoError(t, b.login(t).Follow(t.Context(), all[1]))
	page, err := b.store.Admin.AuditStream(t.Context(), audit.SystemStream, 0, 100)
	require.NoError(t, err)
	published := 0
	for _, e := range page {
		if e.Action == audit.SetPublished {
			published++
			require.Equal(t, setupActor, e.Actor)
		}
	}
	require.Equal(t, 2, published)
}

// The set names the keys: a setup on another Vault, or on one with a new task key,
// is refused and publishes nothing.
func TestSetupRefusesOtherKeys(t *testing.T) {
	b := prepared(t)
	_, err := b.publish(t)
	require.NoError(t, err)
	require.NoError(t, b.vault.Root(t).Sys().Unmount("transit"))
	require.NoError(t, b.admin(t).Setup(t.Context(), b.config.NodeAPINames, b.dir))
	_, err = b.publish(t)
	require.Equal(t, schema.KindInternal, schema.KindOf(err), "%v", err)
	require.NotEmpty(t, schema.AsError(err).Next)
	all, err := b.store.Identities.SetsAfter(t.Context(), 0, 64)
	require.NoError(t, err)
	require.Len(t, all, 1)
}

// A setup on a restored database whose task key Vault has retired warns, and continues with Temporal:
// the revocation that ends this needs the API and a worker.
func TestSetupWithARetiredKey(t *testing.T) {
	b := prepared(t)
	_, err := b.publish(t)
	require.NoError(t, err)
	client := b.vault.Root(t)
	_, err = client.Logical().Write("transit/keys/task-test/rotate", nil)
	require.NoError(t, err)
	_, err = client.Logical().Write("transit/keys/task-test/config", map[string]any{"min_encryption_version": 2})
	require.NoError(t, err)
	var out strings.Builder
	version, err := b.publish(t)
	require.NoError(t, noteSet(&out, version, err))
	require.Contains(t, out.String(), "trust: warning: verifier set 1 requires signatures of task-test.v1")
	require.Contains(t, out.String(), "gpuaas trust revoke task-test.v1 --reason TEXT")
	require.Error(t, noteSet(&out, 0, errors.New("another")))
}

// A task key that differs from the verifier set's stops the signing, and is
// reported by the health check and a metric. A manual rotation does neither.
func TestSignerCheckReports(t *testing.T) {
	b := prepared(t)
	_, err := b.publish(t)
	require.NoError(t, err)
	client := b.login(t)
	signerOK := false
	checked := func(ok bool) { signerOK = ok }
	f := vault.NewSetFollower(b.store.Identities, client.Follow, slog.New(slog.DiscardHandler), checked)
	require.NoError(t, f.Refresh(t.Context()))
	require.True(t, signerOK)
	root := b.vault.Root(t)
	_, err = root.Logical().Write("transit/keys/task-test/rotate", nil)
	require.NoError(t, err)
	require.NoError(t, client.Follow(t.Context(), newest(t, b.store)))

	_, err = root.Logical().Write("transit/keys/task-test/config", map[string]any{"deletion_allowed": true})
	require.NoError(t, err)
	_, err = root.Logical().Delete("transit/keys/task-test")
	require.NoError(t, err)
	_, err = root.Logical().Write("transit/keys/task-test", map[string]any{"type": "ed25519"})
	require.NoError(t, err)
	again := vault.NewSetFollower(b.store.Identities, client.Follow, slog.New(slog.DiscardHandler), checked)
	require.NoError(t, firstCheck(t.Context(), again), "the worker starts without signing")
	require.False(t, signerOK)
	_, err = client.Sign(t.Context(), []byte("{}"))
	require.Error(t, err)
	require.Equal(t, "signer_mismatch", schema.AsError(again.Healthy()).Reason)
	require.ErrorContains(t, again.Healthy(), "task-test.v1")
}

// A start whose check has no result waits, and creates no key.
func TestStartWaitsForCheck(t *testing.T) {
	b := prepared(t)
	client := b.login(t)
	fresh := func() *vault.SetFollower {
		return vault.NewSetFollower(b.store.Identities, client.Follow, slog.New(slog.DiscardHandler), func(bool) {})
	}
	require.Equal(t, schema.KindNotFound, schema.KindOf(firstCheck(t.Context(), fresh())), "no set")
	out := vault.NewSetFollower(unavailable{b.store.Identities}, client.Follow, slog.New(slog.DiscardHandler), func(bool) {})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(firstCheck(t.Context(), out)), "no database")
	_, err := b.publish(t)
	require.NoError(t, err)
	b.vault.Seal(t)
	err = firstCheck(t.Context(), fresh())
	b.vault.Unseal(t)
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.NoError(t, firstCheck(t.Context(), fresh()))
	key, err := b.vault.Root(t).Logical().Read("transit/keys/task-test")
	require.NoError(t, err)
	require.Len(t, key.Data["keys"], 1)
}

// unavailable is a database that cannot be read.
type unavailable struct{ *store.Identities }

func (unavailable) NewestSet(context.Context) (trust.StoredSet, error) {
	return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "Postgres is unavailable")
}

func newest(t *testing.T, s *store.Store) trust.StoredSet {
	t.Helper()
	set, err := s.Identities.NewestSet(t.Context())
	require.NoError(t, err)
	return set
}

// The messages of a setup contain no token.
func TestSetupProgressHidesToken(t *testing.T) {
	b := prepared(t)
	var progress strings.Builder
	a, err := vault.NewAdmin(b.config.vaultAdmin(&progress))
	require.NoError(t, err)
	require.NoError(t, a.Setup(t.Context(), b.config.NodeAPINames, b.dir))
	require.NotContains(t, progress.String(), b.vault.RootToken)
}
