package workload

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
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

// TestRealKubernetes drains a node of a real cluster.
func TestRealKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	for name, test := range map[string]func(*realKube){
		"cordon": realCordon, "foreign cordon": realForeignCordon, "budget": realBudget, "cancel": realCancel, "force": realForce,
		"pods that stay": realStays, "volumes": realVolumes, "control plane": realControlPlane, "leave": realLeave, "server": realServer, "moves": realMoves, "outage": realOutage,
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

// With capacity elsewhere, a drain takes as long as the budget requires, and completes: each
// eviction waits until the pod before runs on the other node.
func realMoves(k *realKube) {
	k.cluster.Cordon(k, k.other, true)
	k.namespace.Deployment(k, "web", 3, kubetest.Spec{Grace: 30})
	pods := k.namespace.Ready(k, "web", 3)
	k.namespace.Budget(k, "web", 2)
	k.cluster.Cordon(k, k.other, false)
	k.cordon(true)
	result := k.drain(false, 2*time.Minute)
	require.Empty(k, result.Blocked)
	require.Len(k, result.Stopped, len(pods))
	for _, p := range k.namespace.Ready(k, "web", 3) {
		require.Equal(k, k.other, p.Spec.NodeName)
	}
}

// A drain that starts while the API server does not respond completes once it does.
func realOutage(k *realKube) {
	k.namespace.Deployment(k, "web", 1, kubetest.Spec{Node: k.node})
	k.namespace.Ready(k, "web", 1)
	k.cordon(true)
	k.cluster.StopAPI(k)
	_, err := k.driver.List(k.Context())
	require.ErrorContains(k, err, "cannot reach the Kubernetes API server")
	require.ErrorContains(k, k.driver.Cordon(k.Context(), false), "cannot reach the Kubernetes API server")
	failed, drained := make(chan struct{}, 1), make(chan task.DrainResult, 1)
	go func() {
		d := listening{k.driver, failed}
		out, err := Drain{Workloads: d, Now: time.Now}.Run(k.Context(),
			drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(harness.Timeout)}))
		result, ok := out.(task.DrainResult)
		if err == nil && ok {
			drained <- result
		}
	}()
	harness.Receive(k, "the list fails", failed)
	k.cluster.StartAPI(k)
	result := harness.Receive(k, "the drain completes", drained)
	require.Len(k, result.Stopped, 1)
	require.Empty(k, result.Blocked)
	require.NoError(k, k.driver.Cordon(k.Context(), false))
	require.False(k, k.unschedulable())
}

// listening is a driver that reports the first list that fails.
type listening struct {
	*kubeDriver
	failed chan<- struct{}
}

func (l listening) List(ctx context.Context) ([]task.Workload, error) {
	list, err := l.kubeDriver.List(ctx)
	if err != nil {
		select {
		case l.failed <- struct{}{}:
		default:
		}
	}
	return list, err
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

// A drain leaves the pods of DaemonSets, static pods and pods that have ended.
func realStays(k *realKube) {
	k.namespace.DaemonSet(k, "exporter", kubetest.Spec{})
	k.namespace.StaticPod(k, k.node, "static")
	k.namespace.Pod(k, "ended", kubetest.Spec{Node: k.node, Extra: kubetest.Object{"activeDeadlineSeconds": 1, "restartPolicy": "Never"}})
	k.cluster.Eventually(k, "a pod ends", func() bool {
		return slices.ContainsFunc(k.namespace.Pods(k), func(p kubetest.Pod) bool { return p.Status.Phase == "Failed" })
	})
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
