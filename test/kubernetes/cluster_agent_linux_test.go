package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

const (
	clusterAgent = "gpuaas-cluster-agent"
	recordPath   = "/api/v1/namespaces/kube-system/configmaps/" + clusterAgent
	leasesPath   = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	pool         = "kubernetes.civo.com/civo-node-pool"
	renewEvery   = 5 * time.Second
)

// The nodes of the test, by the fault that they will have.
func faulty() []string { return []string{"gpu", "disk", "cilium", "lost"} }

// watched is a cluster with Node objects without a kubelet, whose conditions the test sets, and the
// cluster agent with the rights of its manifest.
type watched struct {
	shared
	civo       *civo
	kubeconfig string

	mu    sync.Mutex
	alive []string // nodes whose lease is renewed
}

// civo is a double of Civo's API that counts restarts.
type civo struct {
	*httptest.Server
	mu      sync.Mutex
	reboots []string
}

func newCivo(t *testing.T) *civo {
	t.Helper()
	c := &civo{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.URL.Path, "/v2/instances/id-of-"); ok && r.Header.Get("Authorization") == "bearer key" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reboots = append(c.reboots, strings.TrimSuffix(name, "/hard_reboots"))
			return
		}
		var instances []map[string]string
		for _, name := range append(faulty(), "outside") {
			instances = append(instances, map[string]string{"id": "id-of-" + name, "hostname": name})
		}
		_ = json.NewEncoder(w).Encode(instances)
	}))
	t.Cleanup(c.Close)
	return c
}

// restarts returns the restarted nodes, sorted.
func (c *civo) restarts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.reboots))
}

// checksNodes runs the agent for nodes that lose Ready, GPUs, disk space and Cilium.
func checksNodes(s shared) {
	w := newWatched(s, append(faulty(), "outside")...)
	t := s.t
	monitor, armed := "CIVO_NODE_AGENT_MONITOR_ONLY=true", "CIVO_NODE_AGENT_MONITOR_ONLY=false"
	a := w.run(monitor)
	w.phase(a, "Healthy", faulty()...)
	w.fail()
	w.phase(a, "Unhealthy", faulty()...)
	require.Empty(t, a.metric(t, "recovery_phase", "node", "outside"), "not in the pool")
	require.Empty(t, a.metric(t, "recovery_phase", "node", w.c.Nodes()[0]), "not in the pool")

	a = w.later(a, 31*time.Minute, monitor)
	for _, name := range faulty() {
		w.eventually("the agent shows what it would do with "+name, func() bool {
			return a.metric(t, "recovery_actions_total", "node", name, "mode", "monitor", "action", "reboot") == "1"
		})
	}
	require.Empty(t, w.civo.restarts(), "monitor-only")

	a = w.later(a, 0, armed)
	w.eventually("each node restarts", func() bool { return len(w.civo.restarts()) >= len(faulty()) })
	once := slices.Sorted(slices.Values(faulty()))
	w.phase(a, "WaitingReboot", faulty()...)
	a.end(t, syscall.SIGKILL)
	a = w.run(armed)
	w.eventually("the next agent checks the nodes twice", func() bool {
		return !slices.Contains([]string{"", "1"}, a.metric(t, "health_check_total", "node", "gpu", "checker", "gpu"))
	})
	w.phase(a, "WaitingReboot", faulty()...)
	require.Equal(t, once, w.civo.restarts(), "not again")

	w.set("gpu", func(status kubetest.Object) {
		status["allocatable"] = kubetest.Object{"nvidia.com/gpu": "8"}
		status["nodeInfo"] = kubetest.Object{"bootID": "boot-2"}
	})
	w.phase(a, "Healthy", "gpu")
	a = w.later(a, 11*time.Minute, armed)
	w.eventually("the other nodes restart again", func() bool { return len(w.civo.restarts()) >= 7 })
	a = w.later(a, 11*time.Minute, armed)
	w.phase(a, "Drain", "disk", "cilium", "lost")
	w.phase(a, "Healthy", "gpu")
	require.Equal(t, []string{"cilium", "cilium", "disk", "disk", "gpu", "lost", "lost"}, w.civo.restarts())

	w.c.Do(t, http.MethodDelete, "/api/v1/nodes/lost", nil, nil)
	w.eventually("the series of the node end", func() bool {
		return a.metric(t, "recovery_phase", "node", "lost") == "" && a.metric(t, "node_unhealthy_duration_seconds", "node", "lost") == ""
	})
	standby := w.run(armed)
	require.Empty(t, standby.metric(t, "recovery_phase", "node", "disk"), "only the leader checks")
	a.end(t, syscall.SIGKILL)
	w.phase(standby, "Drain", "disk", "cilium")
	require.Len(t, w.civo.restarts(), 7)
	require.NotContains(t, standby.log(t), "bearer")
}

// newWatched creates the nodes and applies the manifests of the agent.
func newWatched(s shared, nodes ...string) *watched {
	w := &watched{shared: s, civo: newCivo(s.t)}
	t := s.t
	manifest := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "cluster-agent", name))
		require.NoError(t, err)
		return string(text)
	}
	w.c.Apply(t, manifest("rbac.yaml"))
	w.rights()
	w.c.Apply(t, manifest("rbac-delete-nodes.yaml"))
	var deployment kubetest.Object
	require.NoError(t, yaml.Unmarshal([]byte(manifest("deployment.yaml")), &deployment))
	w.c.Do(t, http.MethodPost, "/apis/apps/v1/namespaces/kube-system/deployments?dryRun=All", deployment, nil)
	w.kubeconfig = w.c.ServiceAccount(t, "kube-system", clusterAgent)
	for _, name := range nodes {
		w.create(name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var renewing sync.WaitGroup
	renewing.Go(func() { w.renew(ctx) })
	t.Cleanup(func() {
		cancel()
		renewing.Wait()
	})
	return w
}

// rights checks that the manifest grants what is needed and not more.
func (w *watched) rights() {
	w.t.Helper()
	for _, right := range []struct {
		verb, group, resource, name string
		allowed                     bool
	}{
		{"watch", "", "nodes", "", true},
		{"update", "", "configmaps", clusterAgent, true},
		{"update", "coordination.k8s.io", "leases", clusterAgent, true},
		{"patch", "", "nodes", "gpu", false},
		{"delete", "", "nodes", "gpu", false},
		{"update", "", "configmaps", "other", false},
		{"get", "", "secrets", "civo-api-access", false},
		{"list", "", "pods", "", false},
	} {
		var review struct {
			Status struct {
				Allowed bool `json:"allowed"`
			} `json:"status"`
		}
		w.c.Do(w.t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", kubetest.Object{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": kubetest.Object{
				"user": "system:serviceaccount:kube-system:" + clusterAgent,
				"resourceAttributes": kubetest.Object{"verb": right.verb, "group": right.group, "resource": right.resource,
					"name": right.name, "namespace": "kube-system"}}}, &review)
		require.Equal(w.t, right.allowed, review.Status.Allowed, right)
	}
}

// create creates a healthy node without a kubelet. The node outside belongs to no pool.
func (w *watched) create(name string) {
	w.t.Helper()
	labels := kubetest.Object{pool: "pool-1"}
	if name == "gpu" {
		labels["nvidia.com/gpu.count"] = "8"
	}
	if name == "outside" {
		delete(labels, pool)
	}
	w.c.Create(w.t, kubetest.Object{"apiVersion": "v1", "kind": "Node", "metadata": kubetest.Object{"name": name, "labels": labels},
		"spec": kubetest.Object{"unschedulable": true}})
	w.c.Do(w.t, http.MethodPost, leasesPath, kubetest.Object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": kubetest.Object{"name": name, "namespace": "kube-node-lease"}, "spec": renewal(name)}, nil)
	w.t.Cleanup(func() {
		_, _ = w.c.AsAdmin().Do(context.WithoutCancel(w.t.Context()), http.MethodDelete, "/api/v1/nodes/"+name, nil, nil) // the test may have deleted it
	})
	w.alive = append(w.alive, name)
	w.set(name, func(status kubetest.Object) {
		status["nodeInfo"] = kubetest.Object{"bootID": "boot-1"}
		status["capacity"] = kubetest.Object{"nvidia.com/gpu": "8"}
		status["allocatable"] = status["capacity"]
		status["conditions"] = conditions("True", "False", "False")
	})
}

// conditions are the conditions of a node with Cilium.
func conditions(ready, disk, network string) []kubetest.Object {
	at := time.Now().UTC().Format(time.RFC3339)
	c := func(kind, status, reason string) kubetest.Object {
		return kubetest.Object{"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": at, "lastTransitionTime": at}
	}
	return []kubetest.Object{c("Ready", ready, "KubeletReady"), c("DiskPressure", disk, "KubeletHasDiskPressure"), c("NetworkUnavailable", network, "CiliumIsUp")}
}

// set changes the status of a node.
func (w *watched) set(name string, change func(status kubetest.Object)) {
	w.t.Helper()
	w.eventually("the status of "+name, func() bool { // the controllers change it, too
		var n kubetest.Object
		w.c.Do(w.t, http.MethodGet, "/api/v1/nodes/"+name, nil, &n)
		status, _ := n["status"].(kubetest.Object)
		if status == nil {
			status = kubetest.Object{}
			n["status"] = status
		}
		change(status)
		_, err := w.c.AsAdmin().Do(w.t.Context(), http.MethodPut, "/api/v1/nodes/"+name+"/status", n, nil)
		return code(w.t, err) != http.StatusConflict
	})
}

// fail breaks each node in its way. Without renewals, the controllers of Kubernetes find that the
// node lost is not ready.
func (w *watched) fail() {
	w.t.Helper()
	w.die("lost")
	w.set("gpu", func(status kubetest.Object) { status["allocatable"] = kubetest.Object{"nvidia.com/gpu": "7"} })
	w.set("disk", func(status kubetest.Object) { status["conditions"] = conditions("True", "True", "False") })
	w.set("cilium", func(status kubetest.Object) { status["conditions"] = conditions("True", "False", "True") })
	w.set("outside", func(status kubetest.Object) { status["conditions"] = conditions("False", "True", "True") })
}

// die ends the renewals of a node's lease.
func (w *watched) die(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive = slices.DeleteFunc(w.alive, func(name string) bool { return name == node })
}

func renewal(name string) kubetest.Object {
	return kubetest.Object{"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")}
}

// renew renews the leases of the nodes that live, as their kubelets would.
func (w *watched) renew(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		w.mu.Lock()
		alive := slices.Clone(w.alive)
		w.mu.Unlock()
		for _, name := range alive {
			_, _ = w.c.AsAdmin().Do(ctx, http.MethodPatch, leasesPath+"/"+name, kubetest.Object{"spec": renewal(name)}, nil) // repeated
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *watched) eventually(what string, holds func() bool) {
	w.t.Helper()
	w.c.Eventually(w.t, what, holds)
}

// phase waits until nodes are in a phase, by the agent's metrics.
func (w *watched) phase(a *running, phase string, nodes ...string) {
	w.t.Helper()
	for _, name := range nodes {
		w.eventually(name+" is "+phase, func() bool {
			return a.metric(w.t, "recovery_phase", "node", name, "phase", phase) == "1"
		})
	}
}

// running is a process of the agent.
type running struct {
	cmd     *exec.Cmd
	metrics string
	file    string
	exited  chan error
}

// run starts an agent, and returns when it serves its metrics.
func (w *watched) run(env ...string) *running {
	w.t.Helper()
	program, err := devserver.Find(clusterAgent)
	require.NoError(w.t, err)
	address := harness.FreeAddress(w.t)
	a := &running{metrics: "http://" + address + "/metrics", file: filepath.Join(w.t.TempDir(), "agent.log"), exited: make(chan error, 1)}
	out, err := os.Create(a.file)
	require.NoError(w.t, err)
	defer out.Close()
	a.cmd = exec.CommandContext(w.t.Context(), program, "--kubeconfig", w.kubeconfig)
	a.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "GPUAAS_METRICS_ADDR=" + address, "CIVO_NODE_POOL_IDS=pool-1,pool-2",
		"CIVO_CLUSTER_ID=cluster-1", "CIVO_API_KEY=key", "CIVO_REGION=LON1", "CIVO_API_URL=" + w.civo.URL, "GPUAAS_CLUSTER_MAX_REBOOTING=10"}, env...)
	a.cmd.Stdout, a.cmd.Stderr = out, out
	require.NoError(w.t, a.cmd.Start())
	go func() { a.exited <- a.cmd.Wait() }()
	w.t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // it may have ended
		if w.t.Failed() {
			w.t.Log(a.log(w.t))
		}
	})
	w.eventually("the agent is ready", func() bool {
		answer, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return a
}

func (a *running) log(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(a.file)
	require.NoError(t, err)
	return string(text)
}

// end ends the agent with a signal. After SIGTERM, it must exit with 0.
func (a *running) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, a.cmd.Process.Signal(signal))
	err := harness.Receive(t, "the end of the agent", a.exited)
	if signal == syscall.SIGTERM {
		require.NoError(t, err, a.log(t))
	}
}

// metric returns the value of the first series of a metric with these labels, "" if there is none.
func (a *running) metric(t *testing.T, name string, labels ...string) string {
	t.Helper()
	answer, err := http.Get(a.metrics)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		matches := strings.HasPrefix(series, "civo_node_agent_"+name+"{")
		for i := 0; i < len(labels); i += 2 {
			matches = matches && strings.Contains(series, labels[i]+`="`+labels[i+1]+`"`)
		}
		if matches {
			return value
		}
	}
	return ""
}

// later ends the agent, makes all that it has stored older by a time, and starts the next one.
func (w *watched) later(a *running, by time.Duration, env ...string) *running {
	w.t.Helper()
	a.end(w.t, syscall.SIGTERM)
	var record struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   kubetest.Object   `json:"metadata"`
		Data       map[string]string `json:"data"`
	}
	w.c.Do(w.t, http.MethodGet, recordPath, nil, &record)
	require.NotEmpty(w.t, record.Data)
	for node, text := range record.Data {
		var entry any
		require.NoError(w.t, json.Unmarshal([]byte(text), &entry))
		raw, err := json.Marshal(older(entry, by))
		require.NoError(w.t, err)
		record.Data[node] = string(raw)
	}
	w.c.Do(w.t, http.MethodPut, recordPath, record, nil)
	return w.run(env...)
}

// older moves all times in a JSON value except that of the last report.
func older(value any, by time.Duration) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			if key != "at" {
				v[key] = older(v[key], by)
			}
		}
	case []any:
		for i := range v {
			v[i] = older(v[i], by)
		}
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return at.Add(-by).Format(time.RFC3339Nano)
		}
	}
	return value
}
