package clusteragent

import (
	"bytes"
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

func loaded(t *testing.T, env map[string]string) (*config, error) {
	t.Helper()
	c := newConfig()
	return c, daemon.Load(c, func(name string) string { return env[name] })
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := loaded(t, nil)
	require.NoError(t, err)
	require.True(t, c.monitorOnly())
	require.Equal(t, ":9625", c.MetricsAddr)
	require.Empty(t, c.pools())
	require.Equal(t, 10*time.Minute, c.rebootWait())
	require.Equal(t, 40*time.Minute, c.gpuRebootWait())
	require.False(t, c.joined())
	require.Equal(t, []string{"node_ready", "gpu", "disk_pressure", "cilium"}, checkerNames(list(c.Off)))
	options, err := c.options()
	require.NoError(t, err)
	a := newAgent(nil, "", c.settings(), nil, nil, options...)
	require.Equal(t, NewNopExecutor(), a.executor)
}

// A CIVO_ value that cannot be parsed counts as the default.
func TestRawValues(t *testing.T) {
	t.Parallel()
	civo := map[string]string{"CIVO_CLUSTER_ID": "c", "CIVO_API_KEY": "k", "CIVO_API_URL": "https://api.example.com"}
	for _, test := range []struct {
		name, value string
		get         func(c *config) any
		want        any
	}{
		{"CIVO_NODE_AGENT_MONITOR_ONLY", "false", func(c *config) any { return c.monitorOnly() }, false},
		{"CIVO_NODE_AGENT_MONITOR_ONLY", " 0 ", func(c *config) any { return c.monitorOnly() }, false},
		{"CIVO_NODE_AGENT_MONITOR_ONLY", "", func(c *config) any { return c.monitorOnly() }, true},
		{"CIVO_NODE_AGENT_MONITOR_ONLY", "no", func(c *config) any { return c.monitorOnly() }, true},
		{"CIVO_NODE_AGENT_METRICS_PORT", "1024", func(c *config) any { return c.MetricsAddr }, ":1024"},
		{"CIVO_NODE_AGENT_METRICS_PORT", "65535", func(c *config) any { return c.MetricsAddr }, ":65535"},
		{"CIVO_NODE_AGENT_METRICS_PORT", "1023", func(c *config) any { return c.MetricsAddr }, ":9625"},
		{"CIVO_NODE_AGENT_METRICS_PORT", "65536", func(c *config) any { return c.MetricsAddr }, ":9625"},
		{"CIVO_NODE_AGENT_METRICS_PORT", "http", func(c *config) any { return c.MetricsAddr }, ":9625"},
		{"GPUAAS_METRICS_ADDR", "127.0.0.1:9000", func(c *config) any { return c.MetricsAddr }, "127.0.0.1:9000"},
		{"CIVO_NODE_REBOOT_WAIT_MINUTES", "15", func(c *config) any { return c.rebootWait() }, 15 * time.Minute},
		{"CIVO_NODE_REBOOT_WAIT_MINUTES", "0", func(c *config) any { return c.rebootWait() }, 10 * time.Minute},
		{"CIVO_NODE_REBOOT_WAIT_MINUTES", "-5", func(c *config) any { return c.rebootWait() }, 10 * time.Minute},
		{"CIVO_NODE_REBOOT_WAIT_MINUTES", "10m", func(c *config) any { return c.rebootWait() }, 10 * time.Minute},
		{"CIVO_GPU_NODE_REBOOT_WAIT_MINUTES", "60", func(c *config) any { return c.gpuRebootWait() }, time.Hour},
		{"CIVO_GPU_NODE_REBOOT_WAIT_MINUTES", "9223372036854775807", func(c *config) any { return c.gpuRebootWait() }, 40 * time.Minute},
		{"GPUAAS_CLUSTER_BREAKER", "", func(c *config) any { return c.settings().breakerOff }, false},
		{"GPUAAS_CLUSTER_BREAKER", "false", func(c *config) any { return c.settings().breakerOff }, true},
		{"CIVO_NODE_POOL_ID", " a , ,b,", func(c *config) any { return c.pools() }, []string{"a", "b"}},
		{"CIVO_NODE_POOL_IDS", "b,a,b", func(c *config) any { return c.pools() }, []string{"a", "b"}},
	} {
		env := map[string]string{test.name: test.value}
		maps.Copy(env, civo)
		c, err := loaded(t, env)
		require.NoError(t, err, test)
		require.Equal(t, test.want, test.get(c), test)
	}
	c, err := loaded(t, map[string]string{"CIVO_NODE_POOL_ID": "a,b", "CIVO_NODE_POOL_IDS": "b,c"})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, c.pools())
}

// What would leave the program without effect, or with another one than meant, is no configuration.
func TestFaults(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte("secret-key\n"), 0o600))
	for _, test := range []struct {
		says string
		env  []string
	}{
		{"the cluster ID of Civo must not be empty; set CIVO_CLUSTER_ID, CIVO_API_KEY and CIVO_API_URL", []string{"CIVO_NODE_AGENT_MONITOR_ONLY=false"}},
		{"the API URL of Civo must not be empty", []string{"CIVO_API_KEY_FILE=" + file, "CIVO_CLUSTER_ID=c"}},
		{`"fan" is no checker; use node_ready, gpu, disk_pressure or cilium`, []string{"GPUAAS_CLUSTER_CHECKERS_OFF=cilium,fan"}},
		{"GPUAAS_CLUSTER_MAX_REBOOTING must not be negative", []string{"GPUAAS_CLUSTER_MAX_REBOOTING=-1"}},
		{"CIVO_NODE_POOL_IDS a b", []string{"CIVO_NODE_POOL_ID=a b"}},
		{"GPUAAS_API_TOKEN or GPUAAS_API_TOKEN_FILE is not set", []string{"GPUAAS_API_URL=https://gpuaas.example.com"}},
		{"GPUAAS_API_URL must be an https URL", []string{"GPUAAS_API_URL=http://gpuaas.example.com", "GPUAAS_API_TOKEN=t"}},
	} {
		env := map[string]string{}
		for _, e := range test.env {
			name, value, _ := strings.Cut(e, "=")
			env[name] = value
		}
		_, err := loaded(t, env)
		require.ErrorContains(t, err, test.says)
		require.NotContains(t, err.Error(), "secret-key")
	}
}

func TestPoolSelector(t *testing.T) {
	t.Parallel()
	for want, pools := range map[string][]string{
		"kubernetes.civo.com/civo-node-pool=a":        {"a"},
		"kubernetes.civo.com/civo-node-pool in (a,b)": {"a", "b"},
	} {
		s, err := poolSelector(pools)
		require.NoError(t, err)
		require.Equal(t, want, s.String())
	}
	s, err := poolSelector(nil)
	require.NoError(t, err)
	require.Nil(t, s)
}

// The informer has the nodes of the pools only, and all nodes without a pool.
func TestInformer(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	for _, name := range []string{"a", "b"} {
		r.change(name, func(n *corev1.Node) { n.Labels = map[string]string{poolLabel: "pool-" + name} })
	}
	for _, test := range []struct{ pools, want []string }{
		{nil, []string{"a", "b", "c"}},
		{[]string{"pool-a"}, []string{"a"}},
		{[]string{"pool-a", "pool-b"}, []string{"a", "b"}},
		{[]string{"pool-c"}, nil},
	} {
		selector, err := poolSelector(test.pools)
		require.NoError(t, err)
		factory, nodes := nodeInformer(r.client, selector)
		require.False(t, nodes.Informer().HasSynced())
		factory.Start(t.Context().Done())
		factory.WaitForCacheSync(t.Context().Done())
		var names []string
		for _, o := range nodes.Informer().GetStore().List() {
			names = append(names, o.(*corev1.Node).Name)
		}
		require.ElementsMatch(t, test.want, names)
	}
}

// The informer sees changes without a poll.
func TestInformerWatches(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	factory, nodes := nodeInformer(r.client, nil)
	lister := nodes.Lister()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	r.create("b")
	harness.Eventually(t, "the new node", func() bool {
		n, err := lister.Get("b")
		return err == nil && len(n.Status.Conditions) == 1
	})
}

// A kubeconfig that cannot be used is an error with its path. Not parallel, because the
// program sets klog's logger, which client-go reads in the other tests.
func TestKubeconfig(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "k3s.yaml")
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	require.NoError(t, os.WriteFile(wrong, []byte("{"), 0o600))
	for _, path := range []string{missing, wrong} {
		var stdout, stderr bytes.Buffer
		code := Main(t.Context(), []string{"--kubeconfig", path}, func(name string) string {
			return map[string]string{"GPUAAS_METRICS_ADDR": "127.0.0.1:0"}[name]
		}, &stdout, &stderr)
		require.Equal(t, schema.ExitFailed, code)
		require.Contains(t, stderr.String(), path)
	}
	_, err := connect("")
	require.ErrorContains(t, err, "in-cluster configuration")
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{"--version": "gpuaas-cluster-agent ", "--help": "--kubeconfig"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, schema.ExitDone, Main(t.Context(), []string{arg}, func(string) string { return "" }, &stdout, &stderr), stderr.String())
		require.Contains(t, stdout.String(), want)
		require.NotContains(t, stdout.String(), "TEMPORAL_")
	}
}

// lead runs the work while it has the Lease, and ends with its context.
func TestLead(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	r := newRig(t)
	r.start()
	leading := make(chan struct{})
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- lead(ctx, client, namespace, r.agent.log, func(ctx context.Context) {
			close(leading)
			<-ctx.Done()
		})
	}()
	harness.Receive(t, "the lead", leading)
	cancel()
	require.NoError(t, harness.Receive(t, "the end", ended))
}

var update = flag.Bool("update", false, "rewrite the reference page")

func TestReferencePage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reference/gpuaas-cluster-agent.md"
	page := Reference()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if page != string(got) {
		t.Errorf("%s is not up to date; run ./task gen", path)
	}
}
