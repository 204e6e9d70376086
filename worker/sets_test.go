package worker

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/sets"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/testkit/pgtest"
	"github.com/gpuaas/gpuaas/internal/testkit/vaulttest"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

var sharedVault vaulttest.Shared

func TestMain(m *testing.M) { sharedVault.Run(m) }

// bench is a database and a Vault after the parts of a setup that are theirs.
type bench struct {
	vault   *vaulttest.Server
	store   *store.Store
	url     string
	dir     string
	options SetupOptions
}

func prepared(t *testing.T) *bench {
	t.Helper()
	b := &bench{vault: sharedVault.Get(t), url: pgtest.New(t, store.Migrate), dir: t.TempDir()}
	root := b.vault.Root(t)
	for _, mount := range []string{"pki-node", "pki-api", "transit"} {
		require.NoError(t, root.Sys().Unmount(mount))
	}
	vars := map[string]string{"VAULT_ADDR": b.vault.Address, "GPUAAS_VAULT_TOKEN_FILE": b.vault.TokenFile,
		"GPUAAS_SETUP_OUT_DIR": b.dir, "GPUAAS_ENV": "test"}
	b.options = SetupOptions{Getenv: func(name string) string { return vars[name] }, Talk: io.Discard}
	require.NoError(t, setupVault(t.Context(), b.options))
	var err error
	b.store, err = store.Open(t.Context(), store.Config{URL: b.url})
	require.NoError(t, err)
	t.Cleanup(b.store.Close)
	return b
}

func (b *bench) login(t *testing.T) *vault.Client {
	t.Helper()
	c, err := vault.Login(t.Context(), vault.Config{Address: b.vault.Address, Env: "test", Log: slog.New(slog.DiscardHandler),
		RoleIDFile: filepath.Join(b.dir, "worker-role-id"), SecretIDFile: filepath.Join(b.dir, "worker-secret-id")})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// A second setup changes nothing; one that comes late enough publishes a
// successor with the same keys.
func TestSetupPublishesSets(t *testing.T) {
	b := prepared(t)
	for range 2 {
		version, err := setupSets(t.Context(), b.options, b.url)
		require.NoError(t, err)
		require.Equal(t, int64(1), version)
	}
	first, err := b.store.NewestSet(t.Context())
	require.NoError(t, err)
	signer, err := vault.NewSetSigner(b.options.vaultAdmin(), "test")
	require.NoError(t, err)
	version, err := publishSet(t.Context(), b.store, signer, time.Now().Add(vault.SetLife*2/3))
	require.NoError(t, err)
	require.Equal(t, int64(2), version)
	all, err := b.store.SetsAfter(t.Context(), 0, 64)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, first, all[0])
	require.Equal(t, first.Hash, all[1].PrevHash)
	require.NoError(t, b.login(t).Follow(t.Context(), all[1]))
	page, err := b.store.Audit.Audit(t.Context(), audit.SystemStream, 0, 100)
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

// The set names the keys: a setup on another Vault, or on one whose task key was
// made anew, is refused and publishes nothing.
func TestSetupRefusesAnotherVaultsKeys(t *testing.T) {
	b := prepared(t)
	_, err := setupSets(t.Context(), b.options, b.url)
	require.NoError(t, err)
	require.NoError(t, b.vault.Root(t).Sys().Unmount("transit"))
	require.NoError(t, setupVault(t.Context(), b.options))
	_, err = setupSets(t.Context(), b.options, b.url)
	require.Equal(t, schema.KindInternal, schema.KindOf(err), "%v", err)
	require.NotEmpty(t, schema.AsError(err).Next)
	all, err := b.store.SetsAfter(t.Context(), 0, 64)
	require.NoError(t, err)
	require.Len(t, all, 1)
}

// A key that is not the set's stops the signing, and the worker's health and a
// metric say so; a rotation by hand does not.
func TestSignerCheckShows(t *testing.T) {
	b := prepared(t)
	_, err := setupSets(t.Context(), b.options, b.url)
	require.NoError(t, err)
	client := b.login(t)
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	f := sets.New(b.store, client, slog.New(slog.DiscardHandler), m.signerChecked)
	require.NoError(t, f.Refresh(t.Context()))
	require.InDelta(t, 1, signerOK(t, reg), 0)
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
	again := sets.New(b.store, client, slog.New(slog.DiscardHandler), m.signerChecked)
	require.NoError(t, firstCheck(t.Context(), again), "the rest of the work goes on")
	require.InDelta(t, 0, signerOK(t, reg), 0)
	_, err = client.Sign(t.Context(), []byte("{}"))
	require.Error(t, err)
	require.Equal(t, "signer_mismatch", schema.AsError(again.Healthy()).Reason)
	require.ErrorContains(t, again.Healthy(), "task-test.v1")
}

// A start without a check waits, and makes no key (B37).
func TestStartWithoutACheck(t *testing.T) {
	b := prepared(t)
	client := b.login(t)
	fresh := func() *sets.Follower {
		return sets.New(b.store, client, slog.New(slog.DiscardHandler), func(bool) {})
	}
	require.Equal(t, schema.KindNotFound, schema.KindOf(firstCheck(t.Context(), fresh())), "no set")
	out := sets.New(away{b.store}, client, slog.New(slog.DiscardHandler), func(bool) {})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(firstCheck(t.Context(), out)), "no database")
	_, err := setupSets(t.Context(), b.options, b.url)
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

// away is a database that cannot be read.
type away struct{ *store.Store }

func (away) NewestSet(context.Context) (trust.StoredSet, error) {
	return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "Postgres is away")
}

func newest(t *testing.T, s *store.Store) trust.StoredSet {
	t.Helper()
	set, err := s.NewestSet(t.Context())
	require.NoError(t, err)
	return set
}

func signerOK(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "gpuaas_task_signer_ok" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.FailNow(t, "the gauge is missing")
	return 0
}

// race is a store in which another setup is faster, and a signer that counts.
type race struct {
	newest  *trust.StoredSet
	err     error
	rival   trust.StoredSet
	lost    int // how often the rival is faster
	firsts  int
	renewal bool
}

func (r *race) NewestSet(context.Context) (trust.StoredSet, error) {
	if r.newest == nil {
		return trust.StoredSet{}, schema.NewError(schema.KindNotFound, "none")
	}
	return *r.newest, r.err
}

func (r *race) PutSet(_ context.Context, set trust.StoredSet, _ audit.Subject) error {
	if r.lost > 0 {
		r.lost--
		r.newest = &r.rival
		return schema.NewError(schema.KindInvalidRequest, "outdated").WithReason("set_outdated")
	}
	r.newest = &set
	return nil
}

func (r *race) First(context.Context, time.Time) (trust.StoredSet, error) {
	r.firsts++
	return trust.StoredSet{Version: 1, Hash: "mine"}, nil
}

func (r *race) Renewal(_ context.Context, s trust.StoredSet, _ time.Time) (trust.StoredSet, bool, error) {
	return trust.StoredSet{Version: s.Version + 1}, r.renewal, nil
}

func TestPublishSet(t *testing.T) {
	t.Parallel()
	t.Run("another setup is faster", func(t *testing.T) {
		t.Parallel()
		r := &race{rival: trust.StoredSet{Version: 1, Hash: "rival"}, lost: 1}
		version, err := publishSet(t.Context(), r, r, time.Now())
		require.NoError(t, err)
		require.Equal(t, int64(1), version)
		require.Equal(t, "rival", r.newest.Hash, "one chain")
		require.Equal(t, 1, r.firsts)
	})
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		r := &race{rival: trust.StoredSet{Version: 1}, lost: 100, renewal: true}
		_, err := publishSet(t.Context(), r, r, time.Now())
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	})
	t.Run("a database that is away makes no first set", func(t *testing.T) {
		t.Parallel()
		r := &race{newest: &trust.StoredSet{}, err: schema.NewError(schema.KindServiceUnavailable, "away")}
		_, err := publishSet(t.Context(), r, r, time.Now())
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Zero(t, r.firsts)
	})
}

// What a setup says names no token.
func TestSetupTalk(t *testing.T) {
	b := prepared(t)
	var talk strings.Builder
	b.options.Talk = &talk
	require.NoError(t, setupVault(t.Context(), b.options))
	require.NotContains(t, talk.String(), b.vault.RootToken)
}
