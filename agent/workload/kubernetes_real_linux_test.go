package workload

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

// realKube is the driver of the first node of a real cluster, with the rights of its kubelet.
type realKube struct {
	*testing.T
	cluster     *kubetest.Cluster
	namespace   kubetest.Namespace
	node, other string
	driver      *kubeDriver
	cordoned    bool
}

// controlPlane is the label of the nodes of a control plane.
const controlPlane = "node-role.kubernetes.io/control-plane"

// TestRealKubernetes drains a node of a real cluster.
func TestRealKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	for name, test := range map[string]func(*realKube){
		"cordon": realCordon, "foreign cordon": realForeignCordon, "budget": realBudget, "cancel": realCancel, "force": realForce,
		"pods that stay": realStays, "volumes": realVolumes, "control plane": realControlPlane, "leave": realLeave, "server": realServer,
	} {
		t.Run(name, func(t *testing.T) {
			k := &realKube{T: t, cluster: c, namespace: c.Namespace(t), node: c.Nodes()[0], other: c.Nodes()[1]}
			k.driver = k.open(c.NodeKubeconfig(t, k.node))
			t.Cleanup(func() {
				c.Cordon(t, k.node, false)
				c.Cordon(t, k.other, false)
			})
			test(k)
		})
	}
}

// open makes a driver with its own state.
func (k *realKube) open(kubeconfig string) *kubeDriver {
	k.Helper()
	d, err := NewKubernetes(Config{
		Kubernetes: Kubernetes{Kubeconfig: kubeconfig, Node: k.node}, State: disk.At(k.TempDir()), Changed: func() {},
		Cordoned: func() bool { return k.cordoned }, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(k, err)
	driver, ok := d.(*kubeDriver)
	require.True(k, ok)
	return driver
}

// cordon sets the cordon as the agent does.
func (k *realKube) cordon(on bool) {
	k.Helper()
	k.cordoned = on
	require.NoError(k, k.driver.Cordon(k.Context(), on))
}

func (k *realKube) unschedulable() bool { return k.cluster.Node(k, k.node).Spec.Unschedulable }

// drain drains a cordoned node.
func (k *realKube) drain(force bool, within time.Duration) task.DrainResult {
	k.Helper()
	out, err := Drain{Workloads: k.driver, Now: time.Now}.Run(k.Context(),
		drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(within), Force: force}))
	require.NoError(k, err)
	result, ok := out.(task.DrainResult)
	require.True(k, ok)
	return result
}

// full is a Deployment of two pods on the node, which no other node can run.
func (k *realKube) full(name string) []kubetest.Pod {
	k.Helper()
	k.namespace.Deployment(k, name, 2, kubetest.Spec{Node: k.node, Grace: 30})
	return k.namespace.Ready(k, name, 2)
}

func (k *realKube) workload(p kubetest.Pod) string { return k.namespace.Name + "/" + p.Metadata.Name }

func realCordon(k *realKube) {
	k.cordon(true)
	require.True(k, k.unschedulable())
	k.cluster.Cordon(k, k.node, false) // the Node object loses the cordon
	require.NoError(k, k.driver.reconcile(k.Context()))
	require.True(k, k.unschedulable())
	for range 2 {
		k.cordon(false)
		require.False(k, k.unschedulable())
	}
}

// An uncordon leaves the cordon of an operator, also one that replaced the driver's.
func realForeignCordon(k *realKube) {
	k.cluster.Cordon(k, k.node, true)
	k.cordon(true)
	k.cordon(false)
	require.True(k, k.unschedulable())
	k.cluster.Cordon(k, k.node, false)

	k.cordon(true)
	k.cluster.Cordon(k, k.node, false)
	k.cluster.Cordon(k, k.node, true)
	k.cordon(false)
	require.True(k, k.unschedulable())
}

// A drain against a disruption budget evicts what the budget allows and names what blocks it.
// After the budget is gone, another drain completes.
func realBudget(k *realKube) {
	pods := k.full("web")
	k.namespace.Budget(k, "web", 1)
	require.ElementsMatch(k, []string{k.workload(pods[0]), k.workload(pods[1])}, names(listed(k.T, k.driver)))
	for _, w := range listed(k.T, k.driver) {
		require.Empty(k, w.Warning)
	}
	k.cordon(true)
	result := k.drain(false, 10*time.Second)
	require.Len(k, result.Stopped, 1, "%+v", result)
	require.Len(k, result.Blocked, 1, "%+v", result)
	require.Contains(k, result.Blocked[0].Reason, "a disruption budget allows no eviction now")
	require.Contains(k, result.Blocked[0].Reason, "The disruption budget web needs 1 healthy pods and has 1 currently")
	left := listed(k.T, k.driver)
	require.Equal(k, []string{result.Blocked[0].Workload}, names(left))
	k.driver = k.open(k.cluster.NodeKubeconfig(k, k.node)) // a driver that remembers no warnings
	require.Contains(k, listed(k.T, k.driver)[0].Warning, "a disruption budget allows no eviction now")

	k.namespace.DeleteBudget(k, "web")
	result = k.drain(false, time.Minute)
	require.Empty(k, result.Blocked)
	require.Empty(k, listed(k.T, k.driver))
	k.cluster.Eventually(k, "two pods wait for the node", func() bool { return len(k.namespace.Pods(k)) == 2 })
}

// After the cancellation of a drain, the uncordon lets the evicted pods return.
func realCancel(k *realKube) {
	k.full("web")
	k.namespace.Budget(k, "web", 1)
	k.cordon(true)
	require.Len(k, k.drain(false, 5*time.Second).Stopped, 1)
	require.NoError(k, k.driver.Restore(k.Context()))
	require.True(k, k.unschedulable())
	k.cordon(false)
	require.False(k, k.unschedulable())
	k.namespace.Ready(k, "web", 2)
}

// A pod without a controller blocks a drain, and so does one that ignores SIGTERM. Force
// deletes both.
func realForce(k *realKube) {
	stubborn := kubetest.Spec{Args: []string{"-ignore-sigterm"}, Node: k.node, Grace: 600}
	k.namespace.Deployment(k, "stubborn", 1, stubborn)
	k.namespace.Pod(k, "bare", kubetest.Spec{Node: k.node})
	pod, bare := k.namespace.Ready(k, "stubborn", 1)[0], k.namespace.Ready(k, "bare", 1)[0]
	k.cordon(true)
	result := k.drain(false, 5*time.Second)
	require.Empty(k, result.Stopped)
	reasons := map[string]string{}
	for _, b := range result.Blocked {
		reasons[b.Workload] = b.Reason
	}
	require.Len(k, reasons, 2)
	require.Contains(k, reasons[k.workload(bare)], "the pod has no controller")
	require.Contains(k, reasons[k.workload(pod)], "was asked to stop and still ran at the deadline")
	require.Contains(k, k.namespace.Log(k, pod), "received SIGTERM")

	result = k.drain(true, 0)
	require.Empty(k, result.Blocked)
	require.ElementsMatch(k, []string{k.workload(bare), k.workload(pod)}, result.Stopped)
	require.Empty(k, listed(k.T, k.driver))
}

// A drain leaves the pods of DaemonSets and static pods.
func realStays(k *realKube) {
	k.namespace.DaemonSet(k, "exporter", kubetest.Spec{})
	k.namespace.StaticPod(k, k.node, "static")
	k.namespace.Deployment(k, "web", 1, kubetest.Spec{Node: k.node})
	k.namespace.Ready(k, "exporter", 2)
	k.namespace.Ready(k, "static", 1)
	web := k.namespace.Ready(k, "web", 1)[0]
	require.Equal(k, []string{k.workload(web)}, names(listed(k.T, k.driver)))
	k.cordon(true)
	require.Equal(k, task.DrainResult{Stopped: []string{k.workload(web)}}, k.drain(false, time.Minute))
	k.namespace.Ready(k, "exporter", 2)
	k.namespace.Ready(k, "static", 1)
}

// A list warns of data that an eviction loses or leaves.
func realVolumes(k *realKube) {
	k.namespace.LocalVolume(k, k.node, "data")
	for name, volume := range map[string]kubetest.Object{
		"claim": {"persistentVolumeClaim": kubetest.Object{"claimName": "data"}}, "empty": {"emptyDir": kubetest.Object{}},
		"host": {"hostPath": kubetest.Object{"path": k.TempDir()}}, "none": nil,
	} {
		volumes := map[string]kubetest.Object{"/data": volume}
		if volume == nil {
			volumes = nil
		}
		k.namespace.Deployment(k, name, 1, kubetest.Spec{Node: k.node, Volumes: volumes})
		k.namespace.Ready(k, name, 1)
	}
	want := map[string]string{"claim": warnLocal, "empty": warnEmpty, "host": warnLocal, "none": ""}
	got := map[string]string{}
	for _, w := range listed(k.T, k.driver) {
		app, _, _ := strings.Cut(strings.TrimPrefix(w.Name, k.namespace.Name+"/"), "-")
		got[app] = w.Warning
	}
	require.Equal(k, want, got)
}

// The drain of the only control plane node is refused before any eviction. With a second one it
// starts, also if the credentials allow to read only the addresses of the API servers.
func realControlPlane(k *realKube) {
	k.namespace.Deployment(k, "web", 1, kubetest.Spec{Node: k.node})
	web := k.namespace.Ready(k, "web", 1)[0]
	k.cluster.Label(k, k.node, controlPlane, "")
	k.cordon(true)
	refused := func(reason string) {
		k.Helper()
		result := k.drain(false, time.Minute)
		require.Empty(k, result.Stopped)
		require.Len(k, result.Blocked, 1)
		require.Equal(k, task.KindLastServer, result.Blocked[0].Kind)
		require.Contains(k, result.Blocked[0].Workload, reason)
		require.True(k, k.namespace.Ready(k, "web", 1)[0].Ready())
	}
	refused("it is unknown whether another control plane node is ready")
	kubelet := k.driver
	k.driver = k.open(k.cluster.Admin())
	refused("the only control plane node of its cluster")

	k.cluster.Label(k, k.other, controlPlane, "")
	require.Equal(k, []string{k.workload(web)}, names(listed(k.T, k.driver)))
	k.driver = kubelet
	k.cluster.Endpoints(k, "192.0.2.1", "192.0.2.2")
	require.Equal(k, task.DrainResult{Stopped: []string{k.workload(web)}}, k.drain(false, time.Minute))
}

// A node cannot delete its own Node object.
func realLeave(k *realKube) {
	require.ErrorContains(k, k.driver.Leave(k.Context()), "kubectl delete node "+k.node)
	k.cluster.Node(k, k.node)
}

// The rights in docs/kubernetes.md are enough for the drain of a server whose unit is stopped:
// the virtual address moves first. They are enough to delete the Node object, too. The agent
// cordons a new Node object that the kubelet registers while the node is cordoned.
func realServer(k *realKube) {
	k.documented()
	for _, n := range k.cluster.Nodes() {
		k.cluster.Label(k, n, controlPlane, "")
	}
	moved := k.virtualAddress()
	systemd := kubeHost(k.T, k.driver)
	k.namespace.Deployment(k, "web", 1, kubetest.Spec{Node: k.node})
	web := k.namespace.Ready(k, "web", 1)[0]
	k.cordon(true)
	require.Equal(k, task.DrainResult{Stopped: []string{k.workload(web)}}, k.drain(false, time.Minute))
	require.NoError(k, <-moved)
	require.Equal(k, []string{"stop replace k3s.service"}, systemd.seen())
	require.NoError(k, k.driver.Restore(k.Context()))

	for range 2 {
		require.NoError(k, k.driver.Leave(k.Context()))
	}
	k.cluster.Restart(k, k.node)
	require.False(k, k.unschedulable())
	require.NoError(k, k.driver.reconcile(k.Context()))
	require.True(k, k.unschedulable())
	k.cordon(false)
	require.False(k, k.unschedulable())
}

// documented makes a driver with the rights in the manifest of docs/kubernetes.md.
func (k *realKube) documented() {
	k.Helper()
	page, err := os.ReadFile("../../docs/kubernetes.md")
	require.NoError(k, err)
	_, manifest, ok := strings.Cut(string(page), "```yaml\n")
	require.True(k, ok)
	manifest, _, _ = strings.Cut(manifest, "\n```")
	k.cluster.Apply(k, manifest)
	k.driver = k.open(k.cluster.ServiceAccount(k, "kube-system", "gpuaas-node-agent"))
	k.driver.lease = "kube-system/plndr-cp-lock"
}

// virtualAddress makes the node the holder of the virtual address. The other node is ready to
// take it, as kube-vip does: it renews the lease as soon as it is the holder. The channel
// receives the result of that.
func (k *realKube) virtualAddress() <-chan error {
	k.Helper()
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	k.cluster.Do(k, http.MethodPost, leases, kubetest.Object{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": kubetest.Object{"name": "plndr-cp-lock"},
		"spec": kubetest.Object{"holderIdentity": k.node, "leaseDurationSeconds": 5, "leaseTransitions": 1},
	}, nil)
	moved := make(chan error, 1)
	go func() {
		api, every := k.cluster.AsAdmin(), time.NewTicker(100*time.Millisecond)
		defer every.Stop()
		for {
			var l kubeLease
			_, err := api.Do(k.Context(), http.MethodGet, leases+"/plndr-cp-lock", nil, &l)
			if err == nil && l.Spec.Holder == k.other {
				_, err = api.Do(k.Context(), http.MethodPatch, leases+"/plndr-cp-lock",
					kubetest.Object{"spec": kubetest.Object{"renewTime": time.Now().Add(time.Millisecond).UTC().Format(microTime)}}, nil)
				moved <- err
				return
			}
			if err != nil {
				moved <- err
				return
			}
			<-every.C
		}
	}()
	return moved
}
