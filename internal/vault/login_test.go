package vault

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

func TestSealAndUnseal(t *testing.T) {
	b := prepared(t)
	worker, api := b.login(t, "worker"), b.login(t, "api")
	_, err := api.Roots(t.Context())
	require.NoError(t, err)
	before, err := worker.TaskTrust(t.Context())
	require.NoError(t, err)

	b.Seal(t)
	_, err = worker.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonSealed)
	require.ErrorContains(t, err, b.Address)
	require.Equal(t, "vault operator unseal", schema.AsError(err).Next)
	_, err = api.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	requireKind(t, err, schema.KindServiceUnavailable, ReasonSealed)
	_, err = Login(t.Context(), b.config("worker"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonSealed)
	_, err = api.Roots(t.Context())
	require.NoError(t, err, "from the cache")
	during, err := worker.TaskTrust(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, during)

	b.Unseal(t)
	_, err = worker.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)
	_, err = api.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	require.NoError(t, err)
}

func TestRestart(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	b.Stop(t)
	_, err := c.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonUnreachable)
	require.ErrorContains(t, err, b.Address)
	require.Contains(t, schema.AsError(err).Next, "VAULT_ADDR")
	_, err = Login(t.Context(), b.config("worker"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonUnreachable)
	b.Start(t)
	_, err = c.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)
}

func TestRevokedTokenLogsInAgain(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	b.write(t, "auth/token/revoke", map[string]any{"token": c.api.Token()})

	// Of many concurrent calls, one logs in.
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { _, errs[i] = c.Sign(t.Context(), []byte("{}")) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 2, b.calls.of("login"))
}

func TestOneLoginPerCall(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	// The check of the secret ID's end, which runs once after a login and then every hour, is a call of
	// its own: after the revocation, it would log in, too.
	harness.Eventually(t, "the first check of the secret ID", func() bool { return b.calls.of("secret_id") >= 1 })
	token, secretID := c.api.Token(), readText(t, filepath.Join(b.dir, "worker-secret-id"))
	b.write(t, "auth/approle/role/gpuaas-worker/secret-id/destroy", map[string]any{"secret_id": secretID})
	b.write(t, "auth/token/revoke", map[string]any{"token": token})
	for n := range 2 {
		_, err := c.Sign(t.Context(), []byte("{}"))
		requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
		require.Equal(t, 2+n, b.calls.of("login"), b.log.String())
	}
	// New credentials take effect without a restart.
	require.NoError(t, b.install.setup(t))
	_, err := c.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)
}

// A token is renewed as long as Vault extends it, and replaced before it reaches
// its maximum lifetime.
func TestTokenReplacedBeforeMaximumTTL(t *testing.T) {
	b := prepared(t)
	b.write(t, "auth/approle/role/gpuaas-worker", map[string]any{"token_ttl": "4s", "token_max_ttl": "6s"})
	var failed []error
	for range 5 { // a busy machine may delay a renewal until it fails
		b.calls = &calls{}
		c := b.login(t, "worker")
		first := c.api.Token()
		harness.Eventually(t, "a renewal", func() bool { return b.calls.of("renew") >= 1 })
		harness.Eventually(t, "a login", func() bool { return b.calls.of("login") >= 2 })
		harness.Eventually(t, "its token", func() bool { return c.api.Token() != first }) // which is set after the login was observed
		_, err := c.Sign(t.Context(), []byte("{}"))
		require.NoError(t, err)
		c.Close()
		if failed = b.calls.failed(); len(failed) == 0 {
			return
		}
	}
	require.Empty(t, failed, "no call failed")
}

// A renewal that Vault rejects is logged and observed at once, not when the token is
// about to expire.
func TestFailedRenewal(t *testing.T) {
	b := prepared(t)
	target, err := url.Parse(b.Address)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/auth/token/renew-self" {
			http.Error(w, `{"errors":["`+canary+`"]}`, http.StatusInternalServerError)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	config := b.config("worker")
	config.Address = front.URL
	c := b.loginWith(t, config)
	harness.Eventually(t, "a renewal", func() bool { return b.calls.of("renew") > 0 })
	harness.Eventually(t, "a log line", func() bool { return strings.Contains(b.log.String(), "cannot renew the Vault token") })
	require.NotContains(t, b.log.String(), canary)
	require.NoError(t, c.Follow(t.Context(), b.set), "the token remains valid")
	require.Equal(t, 1, b.calls.of("login"))
}

func TestCloseRevokesToken(t *testing.T) {
	b := prepared(t)
	c, err := Login(t.Context(), b.config("api"))
	require.NoError(t, err)
	_, err = c.ServerCertificate(t.Context())
	require.NoError(t, err)
	token := c.api.Token()
	c.Close()
	c.Close()
	user := b.Client(t)
	user.SetToken(token)
	_, err = user.Auth().Token().LookupSelf()
	require.ErrorContains(t, err, "403")
}

// silent is a server that accepts requests and never responds.
func silent(t *testing.T) string {
	t.Helper()
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(done) })
	return server.URL
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	config := credentials(t)
	config.Address = silent(t)
	s, err := newSession(config)
	require.NoError(t, err)
	s.timeout = 50 * time.Millisecond
	err = s.replaceToken(t.Context(), "")
	requireKind(t, err, schema.KindServiceUnavailable, ReasonUnreachable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, config.Address)
}

func TestUnhealthyVault(t *testing.T) {
	t.Parallel()
	for status, reason := range map[int]string{
		http.StatusInternalServerError: ReasonUnhealthy,
		http.StatusBadGateway:          ReasonUnhealthy,
		http.StatusServiceUnavailable:  ReasonUnhealthy,
		http.StatusTooManyRequests:     ReasonUnhealthy,
		http.StatusBadRequest:          ReasonLogin,
		http.StatusForbidden:           ReasonLogin,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			config := credentials(t)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"errors":["` + canary + `"]}`))
			}))
			t.Cleanup(server.Close)
			config.Address = server.URL
			_, err := Login(t.Context(), config)
			requireKind(t, err, schema.KindServiceUnavailable, reason)
			require.NotContains(t, err.Error(), canary)
		})
	}
}

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	config := credentials(t)
	config.Address = "http://" + harness.FreeAddress(t)
	_, err := Login(t.Context(), config)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonUnreachable)
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"address with a user": func(c *Config) { c.Address = "http://user:" + canary + "@127.0.0.1:1" },
		"address without one": func(c *Config) { c.Address = "localhost:8200" },
		"no environment":      func(c *Config) { c.Env = "" },
		"no files":            func(c *Config) { c.RoleIDFile = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := credentials(t)
			change(&config)
			_, err := Login(t.Context(), config)
			requireKind(t, err, schema.KindInvalidRequest, "")
			require.NotContains(t, err.Error(), canary)
		})
	}
	config := credentials(t)
	config.SecretIDFile += ".none"
	_, err := Login(t.Context(), config)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
}

// canary represents a secret.
const canary = "canary-4b1f"

// credentials returns a configuration with credentials of no Vault.
func credentials(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	c := Config{Env: testEnv, RoleIDFile: filepath.Join(dir, "role"), SecretIDFile: filepath.Join(dir, "secret")}
	require.NoError(t, os.WriteFile(c.RoleIDFile, []byte(canary), 0o600))
	require.NoError(t, os.WriteFile(c.SecretIDFile, []byte(canary), 0o600))
	return c
}

// No error and no log line contains a secret, whatever fails.
func TestNoSecretInErrorsAndLogs(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	secrets := []string{b.RootToken, b.UnsealKey, c.api.Token(),
		readText(t, filepath.Join(b.dir, "api-secret-id")), readText(t, filepath.Join(b.dir, "api-role-id"))}
	var texts []string
	try := func() {
		_, err := c.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
		if err != nil {
			texts = append(texts, err.Error())
		}
		if _, err = c.Sign(t.Context(), []byte("{}")); err != nil {
			texts = append(texts, err.Error())
		}
		if err = b.install.setup(t); err != nil {
			texts = append(texts, err.Error())
		}
	}
	try()
	b.write(t, "auth/token/revoke", map[string]any{"token": c.api.Token()})
	require.NoError(t, b.Root(t).Sys().DisableAuth(loginMount))
	try()
	b.Seal(t)
	try()
	b.Stop(t)
	try()
	b.Start(t)
	require.GreaterOrEqual(t, len(texts), 8)
	for _, err := range b.calls.failed() {
		texts = append(texts, err.Error())
	}
	texts = append(texts, b.log.String())
	if token := c.api.Token(); token != "" {
		secrets = append(secrets, token)
	}
	for _, text := range texts {
		for _, secret := range secrets {
			require.NotContains(t, text, secret)
		}
	}
}
