package vault

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

// cluster is the part of a Kubernetes API server that Vault asks about tokens. It accepts those
// that it issued and that are not revoked.
type cluster struct {
	t      *testing.T
	server *httptest.Server

	mu     sync.Mutex
	issued map[string]account // by token
}

// account is a service account, with the audience of its token.
type account struct{ namespace, name, audience string }

// kubernetes returns a cluster for which Vault has a mount, and configures the setup for it.
func (b *bench) kubernetes(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, issued: map[string]account{}}
	c.server = httptest.NewTLSServer(http.HandlerFunc(c.review))
	t.Cleanup(c.server.Close)
	root := b.Root(t)
	require.NoError(t, root.Sys().EnableAuth("k8s", "kubernetes", ""))
	t.Cleanup(func() { _ = root.Sys().DisableAuth("k8s") })
	b.write(t, "auth/k8s/config", map[string]any{
		"kubernetes_host": c.server.URL, "disable_local_ca_jwt": true, "token_reviewer_jwt": "reviewer",
		"kubernetes_ca_cert": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})),
	})
	b.install.Logins.Kubernetes = ServiceAccounts{Mount: "k8s", Namespace: "gpuaas", Audience: "vault"}
	return c
}

// token issues a token in the form of Kubernetes. Only Vault reads its content; the cluster
// recognizes it.
func (c *cluster) token(a account) (text string) {
	c.t.Helper()
	now := time.Now()
	part := func(v any) string {
		raw, err := json.Marshal(v)
		require.NoError(c.t, err)
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	text = part(map[string]any{"alg": "RS256", "kid": schema.NewID()}) + "." + part(map[string]any{
		"iss": "https://kubernetes.default.svc", "aud": []string{a.audience}, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"sub":           "system:serviceaccount:" + a.namespace + ":" + a.name,
		"kubernetes.io": map[string]any{"namespace": a.namespace, "serviceaccount": map[string]any{"name": a.name, "uid": "uid-" + a.name}},
	}) + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 256))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.issued[text] = a
	return text
}

// revoke ends all tokens.
func (c *cluster) revoke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.issued)
}

// review implements the TokenReview API.
func (c *cluster) review(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Spec struct{ Token string }
	}
	if r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || r.Header.Get("Authorization") != "Bearer reviewer" || json.NewDecoder(r.Body).Decode(&in) != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	c.mu.Lock()
	a, ok := c.issued[in.Spec.Token]
	c.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": map[string]any{
		"authenticated": ok, "audiences": []string{a.audience},
		"user": map[string]any{"username": "system:serviceaccount:" + a.namespace + ":" + a.name, "uid": "uid-" + a.name},
	}})
}

// pod is the configuration of a process whose pod has a token of the account.
func (b *bench) pod(t *testing.T, c *cluster, role string, a account) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(c.token(a)), 0o600))
	return Config{Address: b.Address, Env: testEnv, Log: b.install.Log, Observe: b.calls.observe,
		Kubernetes: KubernetesLogin{Role: role, Mount: "k8s", TokenFile: file}}
}

// The worker, the API and the rotator log in with service accounts, have the privileges of their
// AppRoles and no other's, and log in again with the token that the kubelet wrote since.
func TestServiceAccounts(t *testing.T) {
	b := empty(t)
	c := b.kubernetes(t)
	b.install.dir = "" // no AppRole
	require.NoError(t, b.install.setup(t))
	require.NoError(t, b.install.setup(t), "a second run")
	b.firstSet(t)
	auths, err := b.Root(t).Sys().ListAuth()
	require.NoError(t, err)
	require.NotContains(t, auths, loginMount+"/")

	api := b.loginWith(t, b.pod(t, c, apiName, account{"gpuaas", "gpuaas-api", "vault"}))
	_, err = api.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	require.NoError(t, err)
	require.NoError(t, api.SecretIDFault())

	conf := b.pod(t, c, workerName, account{"gpuaas", "gpuaas-worker", "vault"})
	worker := b.loginWith(t, conf)
	require.NoError(t, worker.Follow(t.Context(), b.set))
	_, err = worker.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)
	_, err = worker.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	require.Error(t, err, "the policy of the worker")

	c.revoke()
	b.write(t, "auth/token/revoke", map[string]any{"token": worker.api.Token()})
	_, err = worker.Sign(t.Context(), []byte("{}"))
	requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
	require.NoError(t, os.WriteFile(conf.Kubernetes.TokenFile, []byte(c.token(account{"gpuaas", "gpuaas-worker", "vault"})), 0o600))
	_, err = worker.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)

	rotating := b.pod(t, c, trustName, account{"gpuaas", "gpuaas-trust", "vault"})
	r, err := LoginRotator(t.Context(), rotating)
	require.NoError(t, err)
	defer r.Close()
	rotating.Kubernetes.Role = workerName
	b.loginWith(t, rotating)
}

// No other service account, namespace or audience is accepted, nor a token that the cluster does
// not recognize.
func TestServiceAccountsAreBound(t *testing.T) {
	b := empty(t)
	c := b.kubernetes(t)
	require.NoError(t, b.install.setup(t))
	b.loginWith(t, b.config("api")) // AppRoles exist beside them
	for name, login := range map[string]struct {
		role    string
		account account
	}{
		"another account":   {apiName, account{"gpuaas", "default", "vault"}},
		"the worker's":      {apiName, account{"gpuaas", "gpuaas-worker", "vault"}},
		"not the rotator":   {trustName, account{"gpuaas", "gpuaas-worker", "vault"}},
		"another namespace": {apiName, account{"tenant", "gpuaas-api", "vault"}},
		"another audience":  {apiName, account{"gpuaas", "gpuaas-api", "https://kubernetes.default.svc"}},
		"an unknown role":   {"gpuaas-other", account{"gpuaas", "gpuaas-api", "vault"}},
	} {
		conf := b.pod(t, c, login.role, login.account)
		_, err := Login(t.Context(), conf)
		requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
		require.ErrorContains(t, err, conf.Kubernetes.TokenFile, name)
		require.Contains(t, schema.AsError(err).Next, "vault read auth/k8s/role/"+login.role)
		require.NotContains(t, err.Error(), readText(t, conf.Kubernetes.TokenFile))
	}
	conf := b.pod(t, c, apiName, account{"gpuaas", "gpuaas-api", "vault"})
	c.revoke()
	_, err := Login(t.Context(), conf)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
	require.NoError(t, os.Remove(conf.Kubernetes.TokenFile))
	_, err = Login(t.Context(), conf)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonLogin)
	require.True(t, strings.HasPrefix(schema.AsError(err).Next, "mount a token"), schema.AsError(err).Next)
}
