package vault

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/vaulttest"
)

// shared is the process's Vault. Its tests run sequentially, each with an empty
// Vault.
var shared vaulttest.Shared

func TestMain(m *testing.M) { shared.Run(m) }

const testEnv = "test"

// bench is a Vault after Setup, with its observers.
type bench struct {
	*vaulttest.Server
	dir     string
	install installation
	log     *harness.Buffer
	calls   *calls
	set     trust.StoredSet // version 1, after Setup
}

// installation is the input of one Setup.
type installation struct {
	AdminConfig
	names []string
	dir   string
}

func (i installation) setup(t *testing.T) error {
	t.Helper()
	a, err := NewAdmin(i.AdminConfig)
	if err != nil {
		return err
	}
	return a.Setup(t.Context(), i.names, i.dir)
}

// empty returns the Vault without any object of Setup.
func empty(t *testing.T) *bench {
	t.Helper()
	s := shared.Get(t)
	root := s.Root(t)
	for _, mount := range []string{nodeMount, apiMount, transitMount, providerMount} {
		require.NoError(t, root.Sys().Unmount(mount))
	}
	require.NoError(t, root.Sys().DisableAuth(loginMount))
	dir := filepath.Join(t.TempDir(), "vault")
	log := &harness.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return &bench{
		Server: s,
		dir:    dir,
		install: installation{AdminConfig{Address: s.Address, TokenFile: s.TokenFile, Env: testEnv, Log: logger},
			[]string{"localhost", "api.test", "127.0.0.1", "::1"}, dir},
		log:   log,
		calls: &calls{},
	}
}

// prepared returns the Vault after Setup.
func prepared(t *testing.T) *bench {
	t.Helper()
	b := empty(t)
	require.NoError(t, b.install.setup(t))
	b.firstSet(t)
	return b
}

// firstSet creates version 1 of the verifier set, for login.
func (b *bench) firstSet(t *testing.T) {
	t.Helper()
	var err error
	b.set, err = b.sets(t).First(t.Context(), time.Now())
	require.NoError(t, err)
}

// sets returns an Admin.
func (b *bench) sets(t *testing.T) *Admin {
	t.Helper()
	a, err := NewAdmin(b.install.AdminConfig)
	require.NoError(t, err)
	return a
}

// config is the configuration of the worker or the api.
func (b *bench) config(role string) Config {
	return Config{
		Address:      b.Address,
		RoleIDFile:   filepath.Join(b.dir, role+"-role-id"),
		SecretIDFile: filepath.Join(b.dir, role+"-secret-id"),
		Env:          testEnv,
		Log:          b.install.Log,
		Observe:      b.calls.observe,
	}
}

// login logs in and follows the newest set.
func (b *bench) login(t *testing.T, role string) *Client {
	t.Helper()
	c := b.loginWith(t, b.config(role))
	require.NoError(t, c.Follow(t.Context(), b.set))
	return c
}

func (b *bench) loginWith(t *testing.T, config Config) *Client {
	t.Helper()
	c, err := Login(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// write changes Vault with the root token.
func (b *bench) write(t *testing.T, path string, data map[string]any) {
	t.Helper()
	_, err := b.Root(t).Logical().WriteWithContext(t.Context(), path, data)
	require.NoError(t, err)
}

// calls counts the observed requests.
type calls struct {
	mu     sync.Mutex
	counts map[string]int
	errs   []error
}

func (c *calls) observe(op string, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[op]++
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

func (c *calls) of(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[op]
}

// failed returns the errors of the failed requests.
func (c *calls) failed() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.errs)
}

func nodeIdentity() trust.Identity {
	return trust.Identity{Env: testEnv, NodeID: schema.NewID(), Incarnation: 1}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.TrimSpace(string(raw))
}

// requireKind checks an error's kind and reason.
func requireKind(t *testing.T, err error, kind schema.Kind, reason string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, kind, schema.KindOf(err), "%v", err)
	require.Equal(t, reason, schema.AsError(err).Reason, "%v", err)
}
