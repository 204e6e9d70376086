package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestReadBoot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "raw")
	_, err := readBoot(path)
	require.ErrorContains(t, err, "gpuaas node terminate NODE --force")
	for text, want := range map[string]string{
		`{"reference":"secret`: "not valid JSON",
		`{}`:                   "no reference",
		`{"reference":"secret","base_url":"http://api"}`: "base_url",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readBoot(path)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	want := machine.BootDocument{Reference: "r", BaseURL: "https://api:8443", Host: "gpu-17"}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	got, err := readBoot(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestFetch(t *testing.T) {
	t.Parallel()
	bundle := trust.BootstrapBundle{NodeID: schema.NewID(), EnrollmentToken: "token"}
	answers := make(chan func(http.ResponseWriter, *http.Request), 10)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (<-answers)(w, r) }))
	t.Cleanup(server.Close)
	document := machine.BootDocument{
		BaseURL: server.URL, Reference: "gpuref",
		CABundlePEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	}
	client, err := newClient(document)
	require.NoError(t, err)
	_, err = newClient(machine.BootDocument{})
	require.Error(t, err)

	code := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); _, _ = w.Write([]byte("why\n")) }
	}
	ok := func(w http.ResponseWriter, r *http.Request) {
		var req trust.BootstrapRequest
		if json.NewDecoder(r.Body).Decode(&req) == nil && req.Reference == "gpuref" && r.URL.Path == "/internal/v1/bootstrap" {
			_ = json.NewEncoder(w).Encode(bundle)
		}
	}
	try := func(given ...func(http.ResponseWriter, *http.Request)) (trust.BootstrapBundle, error) {
		for _, g := range given {
			answers <- g
		}
		return fetch(t.Context(), client, document, time.Millisecond, t.Logf)
	}
	got, err := try(code(http.StatusServiceUnavailable), code(http.StatusTooManyRequests), code(http.StatusBadGateway),
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ok)
	require.NoError(t, err)
	require.Equal(t, bundle, got)
	// The node API refuses these, or answers with nonsense.
	for _, final := range []func(http.ResponseWriter, *http.Request){
		code(http.StatusConflict), code(http.StatusUnauthorized), code(http.StatusFound),
		func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"GPUAAS_ENROLLMENT_TOKEN":"token`))
		},
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) },
	} {
		_, err := try(final)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "token\"")
		require.Empty(t, answers)
	}
	server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = fetch(ctx, client, document, time.Millisecond, func(string, ...any) {})
	require.Error(t, err)
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	bundle := trust.BootstrapBundle{NodeID: "n", EnrollmentToken: "token", CABundlePath: "/etc/x/ca.crt", CABundlePEM: "ca", NodeCertCABundlePEM: "nodes"}
	require.NoError(t, configure(root, bundle))
	for path, want := range map[string]struct {
		text string
		mode os.FileMode
	}{"/etc/x/ca.crt": {"ca", 0o644}, trust.DefaultNodeCABundlePath: {"nodes", 0o644}, trust.DefaultEnvFile: {bundle.EnvFile(), 0o600}} {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, want.text, string(text))
		info, err := os.Stat(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, want.mode, info.Mode())
	}
	bundle.CABundlePath = "relative"
	require.ErrorContains(t, configure(root, bundle), "not absolute")
}

func TestHostsFile(t *testing.T) {
	t.Parallel()
	require.Equal(t, "127.0.0.1 localhost\n127.0.1.1 gpu-17\n10.0.2.2 api\n10.0.2.3 logs\n",
		hostsFile(machine.BootDocument{Host: "gpu-17", Hosts: map[string]string{"logs": "10.0.2.3", "api": "10.0.2.2"}}))
}

// TestAddWorkloads: an image without workloads says so, unless the node has a driver, and one with
// workloads runs them as processes.
func TestAddWorkloads(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec, driver, want string
	}{
		"nothing":  {want: "GPUAAS_WORKLOAD_DRIVER=\"none\"\n"},
		"a driver": {driver: "docker"},
		"a spec":   {spec: `{"command":["/init"]}`, driver: "docker", want: "GPUAAS_WORKLOAD_DRIVER=\"process\"\n"},
	} {
		root := t.TempDir()
		if tc.spec != "" {
			require.NoError(t, os.MkdirAll(filepath.Join(root, imageWorkloads), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, imageWorkloads, "w.json"), []byte(tc.spec), 0o600))
		}
		env := filepath.Join(root, trust.DefaultEnvFile)
		require.NoError(t, os.MkdirAll(filepath.Dir(env), 0o700))
		require.NoError(t, os.WriteFile(env, nil, 0o600))
		require.NoError(t, addWorkloads(root, tc.driver), name)
		text, err := os.ReadFile(env)
		require.NoError(t, err)
		require.Equal(t, tc.want, string(text), name)
		if tc.spec != "" {
			copied, err := os.ReadFile(filepath.Join(root, filepath.Dir(trust.DefaultStateDir), "workloads", "w.json"))
			require.NoError(t, err)
			require.Equal(t, tc.spec, string(copied))
		}
	}
}
