package dev

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema"
)

// sealedVault implements the calls of a Vault that unseal it.
type sealedVault struct{ initialized, open bool }

func (v *sealedVault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(body any) { json.NewEncoder(w).Encode(body) } //nolint:errcheck // the client reports it
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/sys/health":
		switch {
		case !v.initialized:
			w.WriteHeader(http.StatusNotImplemented)
		case !v.open:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "PUT /v1/sys/init":
		v.initialized = true
		reply(map[string]any{"keys_base64": []string{"a2V5"}, "root_token": "root"})
	case "PUT /v1/sys/unseal":
		var in struct{ Key []byte }
		v.open = json.NewDecoder(r.Body).Decode(&in) == nil && string(in.Key) == "key"
		reply(map[string]bool{"sealed": !v.open})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func TestVaultIsUnsealed(t *testing.T) {
	t.Parallel()
	v := &sealedVault{}
	server := httptest.NewServer(v)
	defer server.Close()
	s := &stack{layout: layout{dir: t.TempDir()}, record: record{Vault: onPath(server.URL)}, messages: t.Output()}
	require.NoError(t, s.layout.make())
	p := vaultEngine{s}.part()
	require.ErrorContains(t, p.healthy.once(t.Context()), "it is not initialized")
	require.Error(t, p.ready.once(t.Context()), "initializes it")
	require.Error(t, p.ready.once(t.Context()), "unseals it")
	require.NoError(t, p.ready.once(t.Context()))
	info, err := os.Stat(s.layout.vaultKeys())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	require.NoError(t, vaultEngine{s}.ensureToken())
	token, err := os.ReadFile(s.layout.vaultToken())
	require.NoError(t, err)
	require.Equal(t, "root\n", string(token))

	for _, kind := range []kind{kindPath, kindEmbedded} {
		v.open = false
		s.record.Vault.Kind = kind
		p := vaultEngine{s}.part()
		require.ErrorContains(t, p.healthy.once(t.Context()), "it is sealed")
		require.False(t, v.open, "a status check changes nothing")
		require.NoError(t, p.await(t.Context(), s.layout, func() bool { return false }), kind)
	}

	v.open = false
	require.NoError(t, os.Remove(s.layout.vaultKeys()))
	require.ErrorContains(t, p.ready.once(t.Context()), "no unseal key")
}

func TestSealedExternalVault(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&sealedVault{initialized: true})
	defer server.Close()
	s := &stack{layout: layout{dir: t.TempDir()}, record: record{Vault: external(server.URL)}}
	_, err := vaultEngine{s}.part().ensure(t.Context(), s.layout)
	require.ErrorContains(t, err, "it is sealed")
	require.Contains(t, schema.AsError(err).Next, "vault operator unseal")
}

func onPath(url string) server {
	return server{Kind: kindPath, Address: url, Program: "/usr/bin/vault"}
}

func external(url string) server { return server{Kind: kindExternal, Address: url} }

func TestInstalledVaultIsConfigured(t *testing.T) {
	t.Parallel()
	s := &stack{layout: layout{dir: t.TempDir()}, record: testRecord(t)}
	s.record.Vault.Program = "/usr/bin/vault"
	c, err := vaultEngine{s}.prepare(t.Context())
	require.NoError(t, err)
	file := filepath.Join(s.layout.vaultDir(), "server.json")
	require.Equal(t, []string{"server", "-config", file}, c.args)
	var config struct {
		Listener struct{ TCP struct{ Address string } }
		APIAddr  string `json:"api_addr"`
	}
	_, err = statefile.ReadJSON(file, &config)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:17002", config.Listener.TCP.Address)
	require.Equal(t, "http://127.0.0.1:17002", config.APIAddr)
}

func TestExternalVaultToken(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := filepath.Join(home, "token")
	require.NoError(t, os.WriteFile(file, []byte("from-file\n"), 0o600))
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"variable": {map[string]string{varVaultToken: "from-env", varVaultTokenFile: file}, "from-env\n"},
		"file":     {map[string]string{varVaultTokenFile: file, "HOME": "/nowhere"}, "from-file\n"},
		"none":     {map[string]string{"HOME": "/nowhere"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &stack{layout: layout{dir: t.TempDir()}, getenv: within(c.env).getenv}
			s.record.Vault = external("http://v")
			require.NoError(t, s.layout.make())
			err := vaultEngine{s}.ensureToken()
			if c.want == "" {
				require.ErrorContains(t, err, "privileged token")
				return
			}
			require.NoError(t, err)
			got, err := os.ReadFile(s.layout.vaultToken())
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
		})
	}
}

// TestOwnCopyOfVaultToken: the variable of `dev env` names the stack's copy of the token, which
// does not take precedence over a newer one.
func TestOwnCopyOfVaultToken(t *testing.T) {
	t.Parallel()
	home, l := t.TempDir(), layout{dir: t.TempDir()}
	require.NoError(t, l.make())
	require.NoError(t, os.WriteFile(filepath.Join(home, ".vault-token"), []byte("new"), 0o600))
	require.NoError(t, os.WriteFile(l.vaultToken(), []byte("old"), 0o600))
	s := &stack{layout: l, getenv: within(map[string]string{varVaultTokenFile: l.vaultToken(), "HOME": home}).getenv}
	s.record.Vault = external("http://v")
	require.NoError(t, vaultEngine{s}.ensureToken())
	got, err := os.ReadFile(l.vaultToken())
	require.NoError(t, err)
	require.Equal(t, "new\n", string(got))
}

func TestInstalledTemporal(t *testing.T) {
	t.Parallel()
	s := &stack{layout: layout{dir: "/d"}, record: testRecord(t)}
	s.record.Temporal.Program = "/usr/bin/temporal"
	c := temporalEngine{s}.program()
	require.Equal(t, []string{
		"server", "start-dev", "--ip", "127.0.0.1", "--ui-ip", "127.0.0.1", "--port", "17000", "--ui-port", "17001",
		"--metrics-port", "17008", "--db-filename", "/d/temporal.db", "--namespace", "gpuaas", "--log-level", "warn",
	}, c.args[:18])
	require.Contains(t, c.args, "history.transferProcessorMaxPollRPS=2000")
}
