package workload

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

const serverLabel = "node-role.kubernetes.io/control-plane"

func notReady(o object) object {
	at(o, "status")["conditions"] = []any{object{"type": "Ready", "status": "Unknown"}}
	return o
}

func cordonedNode(o object) object {
	at(o, "spec")["unschedulable"] = true
	return o
}

func addresses(ips ...string) object {
	var all []any
	for _, ip := range ips {
		all = append(all, object{"ip": ip})
	}
	return object{"subsets": []any{object{"addresses": all}, object{"addresses": all}}}
}

const endpoints = "/api/v1/namespaces/default/endpoints/kubernetes"

// refusing answers the requests of a path with a status, unless that is 0.
func refusing(path string, status int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if status == 0 || r.URL.Path != path {
			return false
		}
		reject(w, status, "overloaded")
		return true
	}
}

// TestKubernetesLastServer: a node that runs the only control plane has an entry that says so,
// by the Node objects, or by the addresses of the API servers with the rights of a kubelet.
func TestKubernetesLastServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels  []string
		objects map[string]object
		refuse  int // status of the endpoints of the API servers
		admin   bool
		stops   bool
		want    string
	}{
		"a worker":            {admin: true},
		"alone":               {labels: []string{serverLabel}, admin: true, want: "no other control plane node is ready and schedulable"},
		"alone, old label":    {labels: serverLabels()[1:], admin: true, want: "no other control plane node is ready and schedulable"},
		"beside a worker":     {labels: []string{serverLabel}, objects: map[string]object{"/api/v1/nodes/n2": nodeObject("n2")}, admin: true, want: "no other"},
		"another one is down": {labels: []string{serverLabel}, objects: map[string]object{"/api/v1/nodes/n2": notReady(nodeObject("n2", serverLabel))}, admin: true, want: "no other"},
		"another one":         {labels: []string{serverLabel}, objects: map[string]object{"/api/v1/nodes/n2": nodeObject("n2", serverLabel)}, admin: true},
		"another one drains":  {labels: []string{serverLabel}, objects: map[string]object{"/api/v1/nodes/n2": cordonedNode(nodeObject("n2", serverLabel))}, admin: true, want: "no other"},
		"another one, old":    {labels: serverLabels(), objects: map[string]object{"/api/v1/nodes/n2": nodeObject("n2", serverLabels()[1])}, admin: true},
		"kubelet, alone":      {labels: []string{serverLabel}, objects: map[string]object{endpoints: addresses("10.0.0.1")}, want: "no other"},
		"kubelet, several":    {labels: []string{serverLabel}, objects: map[string]object{endpoints: addresses("10.0.0.1", "10.0.0.2")}},
		"kubelet, stops":      {labels: []string{serverLabel}, objects: map[string]object{endpoints: addresses("10.0.0.1", "10.0.0.2")}, stops: true, want: "it is unknown"},
		"kubelet, no rights":  {labels: []string{serverLabel}, objects: map[string]object{endpoints: addresses("10.0.0.1", "10.0.0.2")}, refuse: http.StatusForbidden, want: "it is unknown"},
		"kubelet, unknown":    {labels: []string{serverLabel}, want: "it is unknown whether another control plane node is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeKube(t, podObject("a", "web"))
			f.set(func() {
				f.admin = c.admin
				f.before = refusing(endpoints, c.refuse)
				f.put("/api/v1/nodes/gpu-1", nodeObject("gpu-1", c.labels...))
				for path, o := range c.objects {
					f.put(path, o)
				}
			})
			cordoned := true
			d := f.driver(&cordoned)
			d.unit.enabled = c.stops
			list := listed(t, d)
			if c.want == "" {
				require.Equal(t, []string{"a/web"}, names(list))
				return
			}
			require.Len(t, list, 2)
			require.Equal(t, task.KindLastServer, list[0].Kind)
			require.Contains(t, list[0].Name, c.want)
			require.Contains(t, list[0].Warning, "a drain is refused: ")

			out, err := Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Hour)}))
			require.NoError(t, err, "it does not wait for the deadline")
			require.Equal(t, task.DrainResult{Stopped: []string{}, Blocked: []task.Blocker{
				{Workload: list[0].Name, Kind: task.KindLastServer, Reason: list[0].Warning},
			}}, out)
			require.Empty(t, f.seen())

			out, err = Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Minute), Force: true}))
			require.NoError(t, err)
			r, ok := out.(task.DrainResult)
			require.True(t, ok)
			require.Equal(t, []string{"a/web"}, r.Stopped)
			require.Empty(t, r.Blocked)
			require.Len(t, r.Ignored, 1)
		})
	}
}

// TestKubernetesServersUnavailable: an API server that fails for a while does not make the node
// the last server; the drain lists it again.
func TestKubernetesServersUnavailable(t *testing.T) {
	t.Parallel()
	f, d := haServer(t, "n2", true)
	f.set(func() { f.before = refusing("/api/v1/nodes", http.StatusServiceUnavailable) })
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "cannot find the other servers of the cluster: the Kubernetes API server answers 503: overloaded")
	f.set(func() { f.before = nil })
	require.Empty(t, listed(t, d))

	f.set(func() {
		f.admin = false
		f.put(endpoints, addresses("10.0.0.1", "10.0.0.2"))
		f.before = refusing(endpoints, http.StatusInternalServerError)
	})
	_, err = d.List(t.Context())
	require.ErrorContains(t, err, "cannot find the other servers of the cluster: the Kubernetes API server answers 500: overloaded")
	f.set(func() { f.before = nil })
	require.Empty(t, listed(t, d), "a kubelet's rights")
}

// TestDrainEndsWhenRefused: a drain during which its cluster loses the other server stops no
// further workload, and reports those that ended before.
func TestDrainEndsWhenRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "a"}, {Name: "b"}}, OnStop: func(string) error { return nil }}
		w.OnList = func(n int) error {
			if n == 3 {
				w.Running = []task.Workload{{Name: "last", Kind: task.KindLastServer}, {Name: "b", Stopping: true}, {Name: "c"}}
			}
			return nil
		}
		out, err := Drain{Workloads: w, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Hour)}))
		require.NoError(t, err)
		r, ok := out.(task.DrainResult)
		require.True(t, ok)
		require.Equal(t, []string{"a"}, r.Stopped)
		require.Len(t, r.Blocked, 1)
		require.Equal(t, []string{"a", "b"}, w.Asked)
	})
}

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/plndr-cp-lock"

func leaseObject(holder string) object {
	return object{"metadata": object{"name": "plndr-cp-lock"}, "spec": object{"holderIdentity": holder, "leaseTransitions": 3, "renewTime": "2024-05-03T10:00:01.000000Z"}}
}

// haServer is a server of a cluster with another one, and its API. renew makes the holder of
// the lease renew it at its next read.
func haServer(t *testing.T, holder string, renew bool) (*fakeKube, *kubeDriver) {
	t.Helper()
	f, renewals := newFakeKube(t), 0
	f.set(func() {
		f.admin = true
		f.put("/api/v1/nodes/gpu-1", nodeObject("gpu-1", serverLabel))
		f.put("/api/v1/nodes/n2", nodeObject("n2", serverLabel))
		f.put(leasePath, leaseObject(holder))
		f.before = func(_ http.ResponseWriter, r *http.Request) bool {
			lease, ok := f.objects[leasePath]
			if ok && renew && r.Method == http.MethodGet && r.URL.Path == leasePath && at(lease, "spec")["holderIdentity"] == "n2" {
				renewals++
				at(lease, "spec")["renewTime"] = fmt.Sprintf("2124-05-03T10:00:%02d.000000Z", renewals)
			}
			return false
		}
	})
	cordoned := true
	d := f.driver(&cordoned)
	d.lease = "kube-system/plndr-cp-lock"
	return f, d
}

// TestKubernetesLease: the virtual address moves to another ready server, which must have
// renewed the lease.
func TestKubernetesLease(t *testing.T) {
	t.Parallel()
	connected := func(d *kubeDriver) *kubeAPI {
		api, err := d.connect()
		require.NoError(t, err)
		return api
	}
	f, d := haServer(t, "gpu-1", true)
	require.NoError(t, connected(d).moveLease(t.Context(), d.lease))
	spec := at(f.get(leasePath), "spec")
	require.Equal(t, "n2", spec["holderIdentity"])
	require.InDelta(t, 4, spec["leaseTransitions"], 0)
	require.Len(t, f.seen(), 1)
	require.NoError(t, connected(d).moveLease(t.Context(), d.lease), "another node holds it and renews it")
	require.Len(t, f.seen(), 1)

	f, d = haServer(t, "gpu-1", true)
	f.set(func() { f.put("/api/v1/nodes/n2", notReady(nodeObject("n2", serverLabel))) })
	require.ErrorContains(t, connected(d).moveLease(t.Context(), d.lease), "no other server is ready")
	f.set(func() { f.admin = false })
	require.ErrorContains(t, connected(d).moveLease(t.Context(), d.lease), "cannot read the lease kube-system/plndr-cp-lock of the virtual address: the Kubernetes API server answers 403")
	require.Empty(t, f.seen())
}

// TestKubernetesLeaseConflict: the holder renews the lease while it moves.
func TestKubernetesLeaseConflict(t *testing.T) {
	t.Parallel()
	f, d := haServer(t, "gpu-1", true)
	renewals, renewed := 1, f.before
	f.set(func() {
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch && renewals > 0 {
				renewals--
				f.put(leasePath, f.objects[leasePath])
			}
			return renewed(w, r)
		}
	})
	api, err := d.connect()
	require.NoError(t, err)
	require.NoError(t, api.moveLease(t.Context(), d.lease))
	require.Equal(t, "n2", at(f.get(leasePath), "spec")["holderIdentity"])
	f.set(func() {
		renewals = conflictTries
		at(f.objects[leasePath], "spec")["holderIdentity"] = "gpu-1"
	})
	require.ErrorContains(t, api.moveLease(t.Context(), d.lease), "changes too often")
}

// TestKubernetesLeaseNotRenewed: a new holder that does not renew the lease keeps the unit from
// being stopped, and so does this node, if it is the holder once more, and a lease without a holder.
func TestKubernetesLeaseNotRenewed(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]string{"the new holder is idle": "n2", "this node holds it": "gpu-1", "released": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := haServer(t, "gpu-1", false)
			cordoned, reads := true, 0
			f.set(func() {
				f.before = func(_ http.ResponseWriter, r *http.Request) bool {
					if reads++; holder != "n2" && r.URL.Path == leasePath && r.Method == http.MethodGet && len(f.calls) > 0 {
						o := f.objects[leasePath]
						at(o, "spec")["holderIdentity"], at(o, "spec")["renewTime"] = holder, fmt.Sprintf("2124-05-03T10:00:%02d.000000Z", reads)
					}
					return false
				}
			})
			synctest.Test(t, func(t *testing.T) {
				api, err := f.direct(&cordoned).connect()
				require.NoError(t, err)
				start := time.Now()
				require.EqualError(t, api.moveLease(t.Context(), "kube-system/plndr-cp-lock"),
					fmt.Sprintf("no other server renewed the lease of the virtual address within 20s: the holder of the lease is %q", holder))
				require.Equal(t, 20*time.Second, time.Since(start))
				if holder == "n2" {
					require.ErrorContains(t, api.moveLease(t.Context(), "kube-system/plndr-cp-lock"), "no other server renewed the lease", "the next try finds the same holder")
				}
			})
		})
	}
}

// TestKubernetesLeave: the Node object is deleted with rights for that; otherwise the error has
// the command to type.
func TestKubernetesLeave(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := true
	d := f.driver(&cordoned)
	m := NewMonitor(NewSeveral([]Named{{"docker", Unmanaged{}}, {"kubernetes", d}}), time.Now, func() {}, d.log)
	err := m.Leave(t.Context())
	require.ErrorContains(t, err, "workload driver kubernetes: the node's Node object stays in the cluster: the Kubernetes API server answers 403")
	require.ErrorContains(t, err, "kubectl delete node gpu-1")
	f.set(func() { f.admin = true })
	require.NoError(t, m.Leave(t.Context()))
	require.Nil(t, f.get("/api/v1/nodes/gpu-1"))
	require.NoError(t, m.Leave(t.Context()))
}
