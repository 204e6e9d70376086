package workload

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKubeconfig: a kubeconfig that would run a program, trust any server or act for another
// user is refused, and no error quotes a secret.
func TestKubeconfig(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	require.NoError(t, os.WriteFile(filepath.Join(f.folder, "empty"), []byte(" \n"), 0o600))
	for name, c := range map[string]struct{ user, cluster, want string }{
		"exec":         {"    exec: {command: /bin/sekret}", "", "exec and auth-provider"},
		"provider":     {"    auth-provider: {name: sekret}", "", "exec and auth-provider"},
		"password":     {"    username: a\n    password: sekret", "", "username, password"},
		"impersonate":  {"    as: sekret", "", "username, password and as"},
		"as a group":   {"    as-groups: [sekret]", "", "username, password and as"},
		"insecure":     {"", "    insecure-skip-tls-verify: true", "insecure-skip-tls-verify"},
		"proxy":        {"", "    proxy-url: http://sekret", "proxy-url"},
		"no YAML":      {"  token: [sekret", "", "not a valid kubeconfig"},
		"type":         {"    token: {a: sekret}", "", "not a valid kubeconfig"},
		"token":        {"    token: \"sekret\\nX-Header: y\"", "", "the token is not valid"},
		"token file":   {"    tokenFile: absent", "", "absent: no such file"},
		"empty token":  {"    tokenFile: empty", "", "the token file is empty"},
		"key":          {"    client-key-data: c2VrcmV0", "", "not a pair in PEM"},
		"key encoding": {"    client-key-data: \"%sekret\"", "", "client-key-data is not base64"},
	} {
		path := f.kubeconfig(c.user, c.cluster)
		_, err := (&kubeConnections{path: path}).connect()
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "sekret", name)
	}
	for content, want := range map[string]string{
		"current-context: x": "no current context",
		"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]": "names a cluster or a user",
		strings.Repeat("#", maxKubeconfig+1):                                        "more than 1048576 bytes",
	} {
		path := filepath.Join(t.TempDir(), "config")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := (&kubeConnections{path: path}).connect()
		require.ErrorContains(t, err, want)
	}
	for _, server := range []string{"http://a", "https://", "https://u:p@a", "/run/x", "https://a?b"} {
		require.ErrorContains(t, kubeCluster{Server: server, CA: "x"}.check(), "https address", server)
	}
	require.ErrorContains(t, kubeCluster{Server: "https://a"}.check(), "certificate-authority is missing")
	require.ErrorContains(t, kubeUser{}.check(), "neither")
	_, err := (&kubeConnections{path: "/absent"}).connect()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestKubernetesRotation: the driver presents a client certificate that was replaced, and a
// token that was.
func TestKubernetesRotation(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := false
	d := f.driver(&cordoned)
	require.Empty(t, listed(t, d))
	first := d.connections.last
	require.Empty(t, listed(t, d))
	require.Same(t, first, d.connections.last, "the connection stays open")
	f.rotate("system:node:gpu-1:second") // not a name: the next list fails
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "set GPUAAS_KUBERNETES_NODE")
	f.rotate("someone")
	d.connections.node = "gpu-1"
	require.Empty(t, listed(t, d))

	token := filepath.Join(f.folder, "token")
	require.NoError(t, os.WriteFile(token, []byte("first\n"), 0o600))
	config := strings.NewReplacer("client-certificate: client.pem", "tokenFile: token", "client-key: client.pem", "").Replace(content(t, d.connections.path))
	require.NoError(t, os.WriteFile(d.connections.path, []byte(config), 0o600))
	require.Empty(t, listed(t, d))
	require.NoError(t, os.WriteFile(token, []byte("second\n"), 0o600))
	require.Empty(t, listed(t, d))
	f.set(func() { require.Equal(t, []string{"system:node:gpu-1", "someone", "first", "second"}, f.users) })
}

func content(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw)
}

// TestKubernetesServerIdentity: the driver sends nothing to a server that another CA verifies.
func TestKubernetesServerIdentity(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	other := newAuthority(t)
	f.ca.pem = other.pem
	cordoned := false
	_, err := f.driver(&cordoned).List(t.Context())
	require.ErrorContains(t, err, "certificate")
	f.set(func() { require.Empty(t, f.users) })
}

// TestKubernetesSlow: a call ends with its context, also while an answer is late, and an API
// server that does not respond makes the workloads unknown.
func TestKubernetesSlow(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := false
	d := f.driver(&cordoned)
	entered, release := make(chan struct{}), make(chan struct{})
	f.set(func() {
		f.before = func(http.ResponseWriter, *http.Request) bool { close(entered); <-release; return true }
	})
	m := NewMonitor(d, time.Now, func() {}, d.log)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, err := m.List(ctx); done <- err }()
	<-entered
	cancel()
	require.ErrorContains(t, <-done, "context canceled")
	close(release)
	f.server.Close()
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "cannot reach the Kubernetes API server 127.0.0.1")
}

func TestKubernetesNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"a": true, "gpu-1.example.com": true, "": false, "..": false, ".": false, "a/b": false, "A": false, "-a": false,
		strings.Repeat("a", 253): true, strings.Repeat("a", 254): false, "a b": false, "é": false} {
		require.Equal(t, ok, validKubeName(name), name)
	}
	for lease, ok := range map[string]bool{"kube-system/plndr-cp-lock": true, "a": false, "a/b/c": false, "/b": false, "a/": false} {
		require.Equal(t, ok, validLease(lease), lease)
	}
}
