package workload

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

// kubeHost is a node on which Kubernetes is a unit of systemd; its API server does not answer
// while the unit is stopped, as with k3s.
func kubeHost(t *testing.T, d *kubeDriver) *fakeSystemd {
	t.Helper()
	systemd := newFakeSystemd(t, &fakeUnit{name: "k3s.service", slice: "system.slice", state: "active"})
	d.unit.enabled, d.unit.names, d.unit.units = true, []string{"k3s.service"}, systemd.bus()
	return systemd
}

// TestKubernetesUnitStops: a drain stops the unit after the last pod and after the virtual
// address moved; an uncordon starts it. In between, the node has no workloads.
func TestKubernetesUnitStops(t *testing.T) {
	t.Parallel()
	f, d := haServer(t, "gpu-1", true)
	f.set(func() {
		p := podObject("a", "web")
		f.put(podKey(p), p)
	})
	systemd := kubeHost(t, d)
	require.ErrorContains(t, d.Finish(t.Context()), "k3s.service is not stopped: pod a/web runs")
	out, err := Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Minute)}))
	require.NoError(t, err)
	require.Equal(t, task.DrainResult{Stopped: []string{"a/web"}}, out)
	require.Equal(t, []string{"stop replace k3s.service"}, systemd.seen())
	require.Equal(t, "n2", at(f.get(leasePath), "spec")["holderIdentity"])

	f.server.Close()
	require.Empty(t, listed(t, d))
	require.NoError(t, d.Finish(t.Context()), "it may run again")
	require.NoError(t, d.reconcile(t.Context()), "there is no API server to ask")
	require.NoError(t, d.Restore(t.Context()))
	require.Equal(t, []string{"stop replace k3s.service", "start replace k3s.service"}, systemd.seen())
	_, err = d.List(t.Context())
	require.ErrorContains(t, err, "cannot reach", "the unit runs again")
}

// TestKubernetesUnitStays: the unit is not stopped if the virtual address cannot move, and that
// of the last server never is. A server that is cordoned may be drained too, so it does not count.
func TestKubernetesUnitStays(t *testing.T) {
	t.Parallel()
	f, d := haServer(t, "gpu-1", true)
	systemd := kubeHost(t, d)
	f.set(func() { delete(f.objects, leasePath) })
	require.ErrorContains(t, d.Finish(t.Context()), "k3s.service is not stopped: cannot read the lease")
	for _, other := range []object{cordonedNode(nodeObject("n2", serverLabel)), nil} {
		f.set(func() {
			delete(f.objects, "/api/v1/nodes/n2")
			if other != nil {
				f.put("/api/v1/nodes/n2", other)
			}
		})
		require.NoError(t, d.Finish(t.Context()))
	}
	require.Empty(t, systemd.seen())
}

// TestKubernetesUnitReturns: an uncordon that could not start the unit is completed later: the unit
// starts, and after that its API server makes the node schedulable.
func TestKubernetesUnitReturns(t *testing.T) {
	t.Parallel()
	f, d := haServer(t, "gpu-1", true)
	systemd, renewed, cordoned := kubeHost(t, d), f.before, true
	d.cordoned = func() bool { f.mu.Lock(); defer f.mu.Unlock(); return cordoned }
	f.set(func() {
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if systemd.state("k3s.service") != "active" {
				w.WriteHeader(http.StatusBadGateway)
				return true
			}
			return renewed(w, r)
		}
	})
	require.NoError(t, d.Cordon(t.Context(), true))
	require.NoError(t, d.Finish(t.Context()))
	f.set(func() { cordoned = false })
	systemd.set(func() { systemd.fails = true })
	require.Error(t, d.Restore(t.Context()))
	require.Error(t, d.Cordon(t.Context(), false))
	require.Error(t, d.reconcile(t.Context()))
	systemd.set(func() { systemd.fails = false })
	require.NoError(t, d.reconcile(t.Context()))
	require.Equal(t, []string{"stop replace k3s.service", "start replace k3s.service"}, systemd.seen())
	require.False(t, f.unschedulable())
}

// TestKubernetesUnitOfWorker: a worker does not touch the lease of the virtual address, for which
// it has no rights.
func TestKubernetesUnitOfWorker(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := true
	d := f.driver(&cordoned)
	d.lease = "kube-system/plndr-cp-lock"
	f.set(func() { f.put(leasePath, leaseObject("gpu-1")) })
	systemd := kubeHost(t, d)
	require.NoError(t, d.Finish(t.Context()))
	require.Equal(t, []string{"stop replace k3s.service"}, systemd.seen())
}
