package cli

import (
	"encoding/pem"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// withConfig is a harness whose configuration comes from a file only.
func withConfig(t *testing.T) *harness {
	t.Helper()
	h := setup(t)
	h.vars = map[string]string{"GPUAAS_CONFIG": filepath.Join(h.env.dir, "conf", "config.yaml")}
	return h
}

// login stores the test's API and token as the context main.
func (h *harness) login() {
	h.t.Helper()
	h.env.stdin = strings.NewReader(apiToken + "\n")
	require.Zero(h.t, h.run("login", "--context", "main", "--api-url", h.api.server.URL), h.err.String())
}

// A login that is rejected leaves the working context as it is.
func TestLoginToPlainAddress(t *testing.T) {
	t.Parallel()
	h := withConfig(t)
	h.login()
	before, err := os.ReadFile(h.vars["GPUAAS_CONFIG"])
	require.NoError(t, err)
	h.env.stdin = strings.NewReader(apiToken)
	require.Equal(t, schema.ExitUsage, h.run("login", "--api-url", "http://gpuaas.example.com:8081"))
	require.Contains(t, h.err.String(), "accept it with --insecure-http")
	after, err := os.ReadFile(h.vars["GPUAAS_CONFIG"])
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	require.Zero(t, h.run("node", "list"), h.err.String())
}

func TestLogin(t *testing.T) {
	t.Parallel()
	t.Run("from stdin", func(t *testing.T) {
		t.Parallel()
		h := withConfig(t)
		h.env.stdin = strings.NewReader(apiToken + "\n")
		h.golden("login", "login", "--context", "main", "--api-url", h.api.server.URL)
		require.Equal(t, os.FileMode(0o600), mode(t, h.vars["GPUAAS_CONFIG"]))
		require.Equal(t, os.FileMode(0o700), mode(t, filepath.Dir(h.vars["GPUAAS_CONFIG"])))
		h.golden("login-used", "node", "list", "-o", "name")
	})
	t.Run("from a file", func(t *testing.T) {
		t.Parallel()
		h := withConfig(t)
		path := filepath.Join(h.env.dir, "token")
		require.NoError(t, os.WriteFile(path, []byte(apiToken+"\n"), 0o600))
		require.Zero(t, h.run("login", "--token-file", path, "--api-url", h.api.server.URL))
		require.Zero(t, h.run("config", "current-context"))
		require.Equal(t, "default\n", h.out.String())
		require.Zero(t, h.run("node", "list"))
	})
	t.Run("a file that others can read", func(t *testing.T) {
		t.Parallel()
		h := withConfig(t)
		h.login()
		require.NoError(t, os.Chmod(h.vars["GPUAAS_CONFIG"], 0o640))
		h.golden("login-mode", "node", "list")
		require.Empty(t, h.api.requests)
	})
	for name, input := range map[string]string{"empty": "\n", "two lines": "a\nb\n", "control": "a\x1b[2J"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := withConfig(t)
			h.env.stdin = strings.NewReader(input)
			require.Equal(t, schema.ExitUsage, h.run("login", "--api-url", h.api.server.URL))
			require.NoFileExists(t, h.vars["GPUAAS_CONFIG"])
		})
	}
	t.Run("never as an argument", func(t *testing.T) {
		t.Parallel()
		h := withConfig(t)
		require.Equal(t, schema.ExitUsage, h.run("login", "gpuat_x"))
		h.env.stdin = strings.NewReader(apiToken)
		require.Equal(t, schema.ExitUsage, h.run("login", "--context", "main"), "a new context needs an address")
	})
}

func TestContexts(t *testing.T) {
	t.Parallel()
	h := withConfig(t)
	h.golden("config-none", "config", "get-contexts")
	h.login()
	require.Zero(t, h.run("config", "set-context", "other", "--api-url", "https://other.test"))
	require.Zero(t, h.run("config", "get-contexts"))
	require.Regexp(t, `\*\s+main\s+http://\S+\s+-\s+REDACTED\n\s+other\s+https://other.test\s+-\s+-\n`, h.out.String())
	h.golden("config-get", "config", "get-contexts", "-o", "json")
	h.golden("config-get-name", "config", "get-contexts", "-o", "name")
	h.golden("config-view", "config", "view")
	h.golden("config-current", "config", "current-context")
	h.golden("config-unknown", "config", "use-context", "third")
	require.Zero(t, h.run("__complete", "config", "use-context", ""))
	require.Equal(t, "main\nother\n:4\n", h.out.String())

	h.golden("config-use", "config", "use-context", "other")
	require.Equal(t, schema.ExitUnreachable, h.run("node", "list"))
	require.Contains(t, h.err.String(), "work with --direct")
	require.NotContains(t, h.err.String(), "gpuaas dev status", "the API is not on this machine")
	require.Zero(t, h.run("node", "list", "--context", "main"))
	require.Equal(t, schema.ExitUsage, h.run("node", "list", "--context", "third"))

	h.golden("config-delete", "config", "delete-context", "other")
	require.Equal(t, schema.ExitUsage, h.run("config", "current-context"))
	require.Zero(t, h.run("config", "get-contexts", "-o", "name"))
	require.Equal(t, "main\n", h.out.String())

	require.Zero(t, h.run("config", "set-context", "main", "--api-url", "https://moved.test"))
	require.Zero(t, h.run("config", "view"))
	require.NotContains(t, h.out.String(), "token", "a new address discards the token")

	require.Equal(t, schema.ExitUsage, h.run("config", "set-context", "my api", "--api-url", "https://x.test"))
	require.Contains(t, h.err.String(), "must not contain blanks")
	h.golden("config-set-plain", "config", "set-context", "plain", "--api-url", "http://api.example.com:8081")
	h.env.stdin = strings.NewReader(apiToken)
	require.Equal(t, schema.ExitUsage, h.run("login", "--context", "plain"))
	require.Contains(t, h.err.String(), "--insecure-http")
	h.env.stdin = strings.NewReader(apiToken)
	require.Zero(t, h.run("login", "--context", "plain", "--insecure-http"))
	require.Contains(t, h.err.String(), "warning: http://api.example.com:8081 is not encrypted")
	require.Zero(t, h.run("config", "set-context", "local", "--api-url", "http://[::1]:8081"))
	require.NotContains(t, h.err.String(), "warning")
	require.Equal(t, schema.ExitUsage, h.run("config", "set-context", "bad", "--api-url", "http://alice:hunter2@x"))
	require.NoError(t, os.WriteFile(h.vars["GPUAAS_CONFIG"], []byte("contexts: [1]"), 0o600))
	require.Equal(t, schema.ExitUsage, h.run("config", "view"))
	h.vars = nil
	require.Equal(t, schema.ExitUsage, h.run("config", "set-context", "x", "--api-url", "http://x.test"))
	h.vars = map[string]string{"HOME": "/h"}
	require.Equal(t, "/h/.config/gpuaas/config.yaml", h.env.configPath())
	h.vars["XDG_CONFIG_HOME"] = "/x"
	require.Equal(t, "/x/gpuaas/config.yaml", h.env.configPath())
}

// TestPrecedence: a flag overrides the environment, and the environment overrides the
// current context.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	stored := config{CurrentContext: "now", Contexts: map[string]apiContext{
		"now": {APIURL: "https://now.test", CAFile: "now.crt", Token: "now-token"}, "named": {APIURL: "https://named.test", Token: "named-token"},
	}}
	for name, tc := range map[string]struct {
		flags globalFlags
		vars  map[string]string
		want  apiContext
	}{
		"context":         {globalFlags{}, nil, stored.Contexts["now"]},
		"context by flag": {globalFlags{context: "named"}, map[string]string{"GPUAAS_API_URL": "https://env.test", "GPUAAS_API_TOKEN": "env-token"}, stored.Contexts["named"]},
		"token of the environment": {globalFlags{}, map[string]string{"GPUAAS_API_TOKEN": "env-token"},
			apiContext{APIURL: "https://now.test", CAFile: "now.crt", Token: "env-token"}},
		"environment": {globalFlags{}, map[string]string{"GPUAAS_API_URL": "https://env.test"}, apiContext{APIURL: "https://env.test"}},
		"url by flag": {globalFlags{apiURL: "https://flag.test"}, map[string]string{"GPUAAS_API_URL": "https://env.test", "GPUAAS_API_TOKEN": "env-token"},
			apiContext{APIURL: "https://flag.test", Token: "env-token"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := withConfig(t)
			require.NoError(t, h.env.editConfig(func(c *config) error { *c = stored; return nil }))
			maps.Copy(h.vars, tc.vars)
			h.env.flags = tc.flags
			got, err := h.env.server()
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestContextCA(t *testing.T) {
	t.Parallel()
	h := withConfig(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.api.answer(w, http.StatusOK, wire.NodeList{Nodes: []wire.NodeView{node()}})
	}))
	t.Cleanup(server.Close)
	require.Equal(t, schema.ExitUnreachable, h.run("node", "list", "--api-url", server.URL))
	ca := filepath.Join(h.env.dir, "ca.crt")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644))
	require.Zero(t, h.run("config", "set-context", "tls", "--api-url", server.URL, "--ca-file", ca))
	require.Zero(t, h.run("node", "list"), h.err.String())
	require.Equal(t, schema.ExitUsage, h.run("config", "set-context", "tls", "--ca-file", h.vars["GPUAAS_CONFIG"]))
}

// TestPlainHTTP: no request, and so no token, goes to another host unencrypted, unless the
// operator allows it.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.vars["GPUAAS_API_URL"] = "http://api.example.com:8081"
	var sent []string
	h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.URL.String()+" "+r.Header.Get("Authorization"))
		return nil, errors.New("no network")
	})
	h.golden("usage-plain-http", "node", "list")
	require.Equal(t, schema.ExitUsage, h.run("node", "list", "--api-url", "http://127.0.0.1.example.com"))
	h.vars["GPUAAS_INSECURE_HTTP"] = "0"
	require.Equal(t, schema.ExitUsage, h.run("node", "list"))
	require.Empty(t, sent)

	h.vars["GPUAAS_INSECURE_HTTP"] = "1"
	require.Equal(t, schema.ExitUnreachable, h.run("node", "list"))
	delete(h.vars, "GPUAAS_INSECURE_HTTP")
	require.Equal(t, schema.ExitUnreachable, h.run("node", "list", "--insecure-http"))
	for _, local := range []string{"http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1", "https://api.example.com"} {
		require.Equal(t, schema.ExitUnreachable, h.run("node", "list", "--api-url", local), local)
	}
	require.Len(t, sent, 6)
}

// A rejected token of the environment, which hides a stored one, is named, so that the next step works.
func TestTokenOfTheEnvironment(t *testing.T) {
	t.Parallel()
	h := withConfig(t)
	h.vars["GPUAAS_API_TOKEN"], h.vars["GPUAAS_API_URL"] = "expired", "http://127.0.0.1:1"
	h.env.stdin = strings.NewReader(apiToken + "\n")
	require.Zero(t, h.run("login", "--api-url", h.api.server.URL), h.err.String())
	require.Contains(t, h.err.String(), "warning: GPUAAS_API_TOKEN is set, and commands use its token: unset GPUAAS_API_TOKEN\n")
	require.Contains(t, h.err.String(), "warning: GPUAAS_API_URL is set to http://127.0.0.1:1, and the token is stored for "+h.api.server.URL)
	delete(h.vars, "GPUAAS_API_URL")
	require.Equal(t, schema.ExitFailed, h.run("node", "list"))
	require.Contains(t, h.err.String(), "next:  correct GPUAAS_API_TOKEN, or unset it and run gpuaas login")
	delete(h.vars, "GPUAAS_API_TOKEN")
	require.Zero(t, h.run("node", "list"), h.err.String())
	require.NotContains(t, h.err.String(), "warning")
}

// An address that is not the one of the admin API is an error that names what to correct.
func TestWrongAddress(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	require.Equal(t, schema.ExitFailed, h.run("node", "list", "--api-url", other.URL))
	require.Contains(t, h.err.String(), "answered 404 Not Found")
	require.Contains(t, h.err.String(), "next:  "+wrongAddressNext)
	require.Equal(t, schema.ExitUsage, h.run("node", "list", "--api-url", "127.0.0.1:8081"))
	require.Contains(t, h.err.String(), "set https://HOST:PORT")
}

// TestRedirect: a redirect is not followed, because it may lead to an unencrypted address.
func TestRedirect(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(other.Close)
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusPermanentRedirect))
	t.Cleanup(first.Close)
	require.Equal(t, schema.ExitFailed, h.run("node", "list", "--api-url", first.URL))
	require.Contains(t, h.err.String(), "answered 308 Permanent Redirect")
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestFormats(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"jsonpath":         {"node", "list", "-o", "jsonpath={.nodes[*].host}"},
		"jsonpath-number":  {"node", "show", "gpu-17", "-o", "jsonpath=$.gpus_total"},
		"jsonpath-empty":   {"node", "list", "-o", "jsonpath="},
		"jsonpath-invalid": {"node", "list", "-o", "jsonpath=.nodes["},
		"name":             {"node", "list", "-o", "name"},
		"wide":             {"node", "list", "-o", "wide"},
		"name-of-one":      {"node", "show", "gpu-17", "-o", "name"},
		"no-names":         {"version", "-o", "name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setup(t).golden("format-"+name, args...)
		})
	}
}
