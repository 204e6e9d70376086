package vault

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

// standing is the state that a second Setup must not change.
type standing struct {
	NodeCA, ServerCA, TaskTrust                    string
	WorkerRole, WorkerSecret, APIRole, APISecretID string
}

func (b *bench) standing(t *testing.T) standing {
	t.Helper()
	c := b.login(t, "api")
	nodeCA, err := c.NodeCA(t.Context())
	require.NoError(t, err)
	serverCA, err := c.ServerCA(t.Context())
	require.NoError(t, err)
	trust, err := c.TaskTrust(t.Context())
	require.NoError(t, err)
	file := func(name string) string { return readText(t, filepath.Join(b.dir, name)) }
	return standing{nodeCA, serverCA, trust.String(),
		file("worker-role-id"), file("worker-secret-id"), file("api-role-id"), file("api-secret-id")}
}

func (b *bench) list(t *testing.T, path string) []any {
	t.Helper()
	secret, err := b.Root(t).Logical().ListWithContext(t.Context(), path)
	require.NoError(t, err)
	require.NotNil(t, secret, path)
	return secret.Data["keys"].([]any)
}

func TestSetupTwice(t *testing.T) {
	b := prepared(t)
	before := b.standing(t)
	require.NoError(t, b.install.setup(t))
	require.Equal(t, before, b.standing(t))
	for _, name := range []string{"worker-role-id", "worker-secret-id", "api-role-id", "api-secret-id"} {
		info, err := os.Stat(filepath.Join(b.dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
	require.Len(t, b.list(t, "auth/approle/role/gpuaas-api/secret-id"), 1)
}

func TestSetupConcurrently(t *testing.T) {
	b := empty(t)
	const runs = 6
	errs := make([]error, runs)
	var wg sync.WaitGroup
	for i := range runs {
		c := b.install
		if i%2 == 1 { // half of them from another machine
			c.dir = filepath.Join(t.TempDir(), "other"+strconv.Itoa(i))
		}
		wg.Go(func() { errs[i] = c.setup(t) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, b.list(t, "pki-node/issuers"), 1)
	require.Len(t, b.list(t, "pki-node/keys"), 1)
	require.Len(t, b.list(t, "pki-api/issuers"), 1)
	require.Len(t, b.list(t, "auth/approle/role/gpuaas-worker/secret-id"), 1+runs/2, "one per folder")
	require.Len(t, b.list(t, "transit/keys"), 3)
	b.firstSet(t)
	before := b.standing(t)
	require.NoError(t, b.install.setup(t))
	require.Equal(t, before, b.standing(t))
}

func TestSetupReplacesOnlyInvalidSecretID(t *testing.T) {
	b := prepared(t)
	before := b.standing(t)
	b.write(t, "auth/approle/role/gpuaas-api/secret-id/destroy", map[string]any{"secret_id": before.APISecretID})
	_, err := Login(t.Context(), b.config("api"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
	require.NotContains(t, err.Error(), before.APISecretID)
	require.NoError(t, b.install.setup(t))
	after := b.standing(t)
	require.NotEqual(t, before.APISecretID, after.APISecretID)
	after.APISecretID = before.APISecretID
	require.Equal(t, before, after)
}

func TestSetupTightensFileModes(t *testing.T) {
	b := prepared(t)
	file := filepath.Join(b.dir, "api-secret-id")
	require.NoError(t, os.Chmod(file, 0o644))
	require.NoError(t, b.install.setup(t))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestSetupKeepsRotatedIssuer(t *testing.T) {
	b := prepared(t)
	b.write(t, "pki-node/root/generate/internal", map[string]any{
		"common_name": "gpuaas test node CA G2", "issuer_name": "g2", "key_type": "ec", "key_bits": 256, "ttl": "87600h",
	})
	role, err := b.Root(t).Logical().Read("pki-node/roles/node")
	require.NoError(t, err)
	role.Data["issuer_ref"] = "g2"
	b.write(t, "pki-node/roles/node", role.Data)
	require.NoError(t, b.install.setup(t))

	c := b.login(t, "api")
	issued, err := c.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	require.NoError(t, err)
	require.Equal(t, "CN=gpuaas test node CA G2", issued.Facts.Issuer)
	roots, err := c.Roots(t.Context())
	require.NoError(t, err)
	require.Len(t, roots, 2)
}

func TestSetupAppliesNewNames(t *testing.T) {
	b := prepared(t)
	b.install.names = []string{"api.example.test"}
	require.NoError(t, b.install.setup(t))
	cert, err := b.login(t, "api").ServerCertificate(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"api.example.test"}, cert.Leaf().DNSNames)
	require.Empty(t, cert.Leaf().IPAddresses)
}

func TestSetupRejects(t *testing.T) {
	b := prepared(t)
	t.Run("another environment's Vault", func(t *testing.T) {
		c := b.install
		c.Env = "prod"
		err := c.setup(t)
		requireKind(t, err, schema.KindInvalidRequest, "")
		require.ErrorContains(t, err, "another environment")
	})
	t.Run("names that are none", func(t *testing.T) {
		for _, name := range []string{"*.example", "a b", "", "-a", `a"`, "a..b"} {
			c := b.install
			c.names = []string{name}
			requireKind(t, c.setup(t), schema.KindInvalidRequest, "")
		}
		for _, env := range []string{"", "Prod", "a/b", "a*", "-", "a\n"} {
			c := b.install
			c.Env = env
			requireKind(t, c.setup(t), schema.KindInvalidRequest, "")
		}
	})
	t.Run("a token without rights", func(t *testing.T) {
		a := b.install
		a.TokenFile = filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(a.TokenFile, []byte("hvs.CAESIJwAAAAAAAAAAAAAAAAAAAAAAAAA"), 0o600))
		err := a.setup(t)
		requireKind(t, err, schema.KindForbidden, "")
		require.NotContains(t, err.Error(), "CAESI")
		a.TokenFile += ".none"
		requireKind(t, a.setup(t), schema.KindInvalidRequest, "")
	})
	t.Run("a mount of another type", func(t *testing.T) {
		root := b.Root(t)
		require.NoError(t, root.Sys().Unmount(transitMount))
		b.write(t, "sys/mounts/transit", map[string]any{"type": "kv"})
		err := b.install.setup(t)
		require.ErrorContains(t, err, "gpuaas needs type transit")
	})
	t.Run("a key that can leave Vault", func(t *testing.T) {
		root := b.Root(t)
		require.NoError(t, root.Sys().Unmount(transitMount))
		b.write(t, "sys/mounts/transit", map[string]any{"type": "transit"})
		b.write(t, "transit/keys/task-test", map[string]any{"type": "ed25519", "exportable": true})
		err := b.install.setup(t)
		requireKind(t, err, schema.KindInvalidRequest, "")
		require.ErrorContains(t, err, "cannot leave Vault")
	})
}

// Setup creates no key if it cannot read the existing one: with a new key, every
// node would reject our tasks.
func TestSetupCreatesNoKeyAfterFailedRead(t *testing.T) {
	b := prepared(t)
	before := b.standing(t)
	target, err := url.Parse(b.Address)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	made := []string{"/v1/pki-node/root/generate/internal", "/v1/pki-api/root/generate/internal",
		"/v1/transit/keys/task-test", "/v1/transit/keys/set-root-test", "/v1/auth/approle/role/gpuaas-worker/secret-id"}
	for _, read := range []string{"sys/mounts", "pki-node/issuers", "pki-api/issuers", "transit/keys/task-test",
		"transit/keys/set-root-test", "auth/approle/role/gpuaas-worker/secret-id/lookup"} {
		for status, body := range map[int]string{
			http.StatusForbidden:           `{"errors":["permission denied"]}`,
			http.StatusNotFound:            `{"errors":["no handler for route"]}`,
			http.StatusBadGateway:          "<html>",
			http.StatusInternalServerError: `{"errors":["internal error"]}`,
			http.StatusServiceUnavailable:  `{"errors":["Vault is sealed"]}`,
			http.StatusOK:                  `{"data":"nonsense"}`,
		} {
			t.Run(read+"/"+http.StatusText(status), func(t *testing.T) {
				var makes atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if slices.Contains(made, r.URL.Path) && r.Method == http.MethodPut {
						makes.Add(1)
					}
					if r.URL.Path == "/v1/"+read {
						w.WriteHeader(status)
						_, _ = w.Write([]byte(body))
						return
					}
					proxy.ServeHTTP(w, r)
				}))
				t.Cleanup(server.Close)
				a := b.install
				a.Address = server.URL
				require.Error(t, a.setup(t))
				require.Zero(t, makes.Load())
			})
		}
	}
	require.Equal(t, before, b.standing(t))
	b.Seal(t)
	requireKind(t, b.install.setup(t), schema.KindServiceUnavailable, ReasonSealed)
	b.Unseal(t)
	require.Equal(t, before, b.standing(t))
}

func TestSplitNames(t *testing.T) {
	t.Parallel()
	dns, ips, err := splitNames([]string{"b.test", " Mac-Book.local", "127.0.0.1", "b.test", "0:0::1"})
	require.NoError(t, err)
	require.Equal(t, []string{"b.test", "mac-book.local"}, dns)
	require.Equal(t, []string{"127.0.0.1", "::1"}, ips)
}

// Setup completes after an earlier run was interrupted at any request: before it
// reached Vault, or after it with the response lost.
func TestSetupInterrupted(t *testing.T) {
	b := empty(t)
	target, err := url.Parse(b.Address)
	require.NoError(t, err)
	var left atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(target)
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n := left.Add(-1); {
		case n > 0:
			proxy.ServeHTTP(w, r)
		case n == 0:
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(cut.Close)
	a := b.install
	a.Address = cut.URL
	runs := 0
	for err := error(schema.NewError(schema.KindInternal, "not yet")); err != nil; runs++ {
		left.Store(int64(runs))
		err = a.setup(t)
		require.Less(t, runs, 100)
		if err != nil {
			requireKind(t, err, schema.KindServiceUnavailable, ReasonUnreachable)
		}
	}
	require.Greater(t, runs, 20)
	require.Len(t, b.list(t, "pki-node/issuers"), 1)
	require.Len(t, b.list(t, "pki-node/keys"), 1)
	b.firstSet(t)
	before := b.standing(t)
	require.NoError(t, b.install.setup(t))
	require.Equal(t, before, b.standing(t))
}

// Only Vault's own 404 without a message means that an object does not exist.
func TestAbsentOnlyByVaults404(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		body   string
		absent bool
	}{
		"clear":        {`{"errors":[]}`, true},
		"no such path": {`{"errors":["no handler for route \"pki-node/issuers\""]}`, false},
		"a proxy's":    {"<html>not found</html>", false},
		"no body":      {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write([]byte(row.body))
			}))
			t.Cleanup(server.Close)
			c, err := dial(server.URL)
			require.NoError(t, err)
			for _, r := range []request{get("x"), list("x"), put("x", nil)} {
				_, err = c.send(t.Context(), r)
				require.Error(t, err)
				require.Equal(t, row.absent, errors.Is(err, errAbsent), "%v", err)
			}
		})
	}
}

func TestSigningKeysCannotLeaveVault(t *testing.T) {
	b := prepared(t)
	root := b.Root(t)
	for _, name := range []string{"task-test", "set-root-test"} {
		key, err := root.Logical().Read("transit/keys/" + name)
		require.NoError(t, err)
		require.Equal(t, "ed25519", key.Data["type"])
		for _, field := range []string{"exportable", "allow_plaintext_backup", "deletion_allowed"} {
			require.Equal(t, false, key.Data[field], field)
		}
		_, err = root.Logical().Read("transit/export/signing-key/" + name)
		require.Error(t, err)
		_, err = root.Logical().Read("transit/backup/" + name)
		require.Error(t, err)
		_, err = root.Logical().Delete("transit/keys/" + name)
		require.Error(t, err)

		b.write(t, "transit/keys/"+name+"/config", map[string]any{"deletion_allowed": true, "auto_rotate_period": "24h"})
		require.NoError(t, b.install.setup(t))
		_, err = root.Logical().Delete("transit/keys/" + name)
		require.Error(t, err, "setup takes a deletion_allowed back")
	}
}
