package workload

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/wait"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestKubernetesCordon: an uncordon restores exactly what the Node object was.
func TestKubernetesCordon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, between func(f *fakeKube)
		want            bool // unschedulable after the uncordon
	}{
		"the agent's own":              {want: false},
		"an operator's before":         {before: func(f *fakeKube) { f.byHand(true) }, want: true},
		"an operator's after":          {between: func(f *fakeKube) { f.byHand(false); f.byHand(true) }, want: true},
		"an operator removed it":       {between: func(f *fakeKube) { f.byHand(false) }, want: false},
		"the Node object was replaced": {between: func(f *fakeKube) { f.set(func() { f.put("/api/v1/nodes/gpu-1", nodeObject("gpu-1")) }) }, want: false},
		"the API server says no manager": {between: func(f *fakeKube) {
			f.set(func() { delete(at(f.objects["/api/v1/nodes/gpu-1"], "metadata"), "managedFields") })
		}, want: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeKube(t)
			if c.before != nil {
				c.before(f)
			}
			cordoned := true
			d := f.driver(&cordoned)
			require.NoError(t, d.Cordon(t.Context(), true))
			require.NoError(t, d.Cordon(t.Context(), true))
			require.True(t, f.unschedulable())
			if c.between != nil {
				c.between(f)
			}
			d = f.driver(&cordoned) // the agent restarts
			require.NoError(t, d.Cordon(t.Context(), false))
			require.Equal(t, c.want, f.unschedulable())
			require.NoError(t, d.Cordon(t.Context(), false))
			f.byHand(true)
			require.NoError(t, d.Cordon(t.Context(), false))
			require.True(t, f.unschedulable(), "nothing is left to restore")
		})
	}
}

// TestKubernetesReconcile: while the node is cordoned, its Node object stays unschedulable; an
// uncordon that failed is done later.
func TestKubernetesReconcile(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := true
	d := f.driver(&cordoned)
	require.NoError(t, d.reconcile(t.Context()))
	require.True(t, f.unschedulable())
	f.set(func() { f.put("/api/v1/nodes/gpu-1", nodeObject("gpu-1")) })
	require.NoError(t, d.reconcile(t.Context()))
	require.True(t, f.unschedulable(), "the Node object was created again")

	f.set(func() {
		cordoned = false
		f.before = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true }
	})
	require.Error(t, d.Cordon(t.Context(), false))
	require.Error(t, d.reconcile(t.Context()))
	f.set(func() { f.before = nil })
	require.NoError(t, d.reconcile(t.Context()))
	require.False(t, f.unschedulable())

	f.set(func() { cordoned = true })
	require.NoError(t, d.reconcile(t.Context()))
	f.set(func() { cordoned = false; delete(f.objects, "/api/v1/nodes/gpu-1") })
	require.NoError(t, d.reconcile(t.Context()), "there is no Node object")
	f.set(func() { f.put("/api/v1/nodes/gpu-1", nodeObject("gpu-1")) })
	f.byHand(true)
	require.NoError(t, d.reconcile(t.Context()))
	require.True(t, f.unschedulable(), "it is not the agent's")
}

// TestKubernetesRun: Run applies a cordon that could not be applied before, and reports the list.
func TestKubernetesRun(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "web"))
	cordoned, changes := true, 0
	synctest.Test(t, func(t *testing.T) {
		d := f.direct(&cordoned)
		d.changed = func() { changes++ }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx) }()
		synctest.Wait()
		require.True(t, f.unschedulable())
		require.Equal(t, 1, changes)
		f.set(func() { cordoned = false })
		require.NoError(t, wait.Sleep(t.Context(), watchEvery))
		synctest.Wait()
		require.False(t, f.unschedulable())
		require.Equal(t, 1, changes, "the list is the same")
		cancel()
		<-done
	})
}

// TestKubernetesCordonConflict: a change of the Node object at the same time does not keep the
// driver from it, and never makes an operator's cordon the agent's.
func TestKubernetesCordonConflict(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := true
	d := f.driver(&cordoned)
	conflicts := 1
	f.set(func() {
		f.before = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch && conflicts > 0 {
				conflicts--
				f.put("/api/v1/nodes/gpu-1", f.objects["/api/v1/nodes/gpu-1"]) // a new version
			}
			return false
		}
	})
	require.NoError(t, d.Cordon(t.Context(), true))
	require.True(t, f.unschedulable())
	f.set(func() { conflicts = conflictTries })
	require.ErrorContains(t, d.Cordon(t.Context(), false), "modified")
	require.NoError(t, d.Cordon(t.Context(), false))
	require.False(t, f.unschedulable())
}

// TestKubernetesCordonCrash: the agent ends while the API server makes the node unschedulable. After
// its restart, an uncordon removes the cordon.
func TestKubernetesCordonCrash(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := true
	d := f.driver(&cordoned)
	record := filepath.Join(f.folder, "kubernetes-cordon.json")
	var crash []byte // the record when the request arrives, nil without one
	f.set(func() {
		f.before = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch {
				crash, _ = os.ReadFile(record) // there may be none
			}
			return false
		}
	})
	require.NoError(t, d.Cordon(t.Context(), true))
	require.NoError(t, os.Remove(record))
	if crash != nil {
		require.NoError(t, os.WriteFile(record, crash, 0o600))
	}
	d = f.driver(&cordoned)
	require.True(t, f.unschedulable())
	require.NoError(t, d.Cordon(t.Context(), false))
	require.False(t, f.unschedulable())
}

// TestKubernetesCordonLost: a drain restores a cordon that the Node object lost, before the next
// eviction. Not every eviction reads the Node object.
func TestKubernetesCordonLost(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "one"), podObject("a", "two"), podObject("a", "three"))
	cordoned := true
	synctest.Test(t, func(t *testing.T) {
		d := f.direct(&cordoned)
		require.NoError(t, d.Stop(t.Context(), "a/one"))
		f.byHand(false)
		require.NoError(t, wait.Sleep(t.Context(), 5*time.Second-1))
		require.NoError(t, d.Stop(t.Context(), "a/two"))
		require.False(t, f.unschedulable())
		require.NoError(t, wait.Sleep(t.Context(), 1))
		require.NoError(t, d.Stop(t.Context(), "a/three"))
		require.True(t, f.unschedulable())
	})
	const cordon = "PATCH /api/v1/nodes/gpu-1?fieldManager=gpuaas-node-agent"
	evict := func(pod string) string { return "POST /api/v1/namespaces/a/pods/" + pod + "/eviction?" }
	require.Equal(t, []string{cordon, evict("one"), evict("two"), cordon, evict("three")}, f.seen())
}

// TestCordonFollows: the task applies the cordon to the driver's scheduler, and a scheduler that
// cannot be reached is part of the task's output only.
func TestCordonFollows(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	flag, err := LoadCordon(disk.At(t.TempDir()), func() {})
	require.NoError(t, err)
	cordoned := false
	d := f.driver(&cordoned)
	d.cordoned = flag.Cordoned
	c := Cordon{Flag: flag, Workloads: NewMonitor(NewSeveral([]Named{{"docker", Unmanaged{}}, {"kubernetes", d}}), time.Now, func() {}, d.log)}
	run := func(on bool) string {
		var out bytes.Buffer
		x := drainTask(&bytes.Buffer{}, task.DrainParams{})
		x.Output = &out
		_, err := c.Set(on)(t.Context(), x)
		require.NoError(t, err)
		return out.String()
	}
	require.Empty(t, run(true))
	require.True(t, f.unschedulable())
	require.Empty(t, run(false))
	require.False(t, f.unschedulable())
	f.server.Close()
	require.Contains(t, run(true), "could not apply the cordon to its scheduler, and tries again: workload driver kubernetes: cannot reach the Kubernetes API server")
	require.True(t, flag.Cordoned())
}
