package workload

import (
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

// controlPlane is the label of the nodes of a control plane.
const controlPlane = "node-role.kubernetes.io/control-plane"

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
	refused("no other control plane node is ready and schedulable")

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
