package workload

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

func owner(kind string) func(object) {
	return func(o object) {
		at(o, "metadata")["ownerReferences"] = []any{object{"kind": "Other"}, object{"kind": kind, "controller": true}}
	}
}

func bare(o object) { delete(at(o, "metadata"), "ownerReferences") }

func critical(o object) { at(o, "spec")["priorityClassName"] = "system-cluster-critical" }

func phase(p string) func(object) { return func(o object) { at(o, "status")["phase"] = p } }

func mirror(o object) { at(o, "metadata")["annotations"] = object{mirrorAnnotation: "x"} }

// TestKubernetesList: a drain ends the pods that kubectl drain ends, critical ones last, and
// the list spans pages. Ended pods and those of other nodes are no workloads.
func TestKubernetesList(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "dns", critical), podObject("b", "web"), podObject("a", "web"), podObject("a", "agent", owner("DaemonSet")),
		podObject("a", "done", phase("Succeeded")), podObject("a", "dead", phase("Failed")), podObject("kube-system", "static", mirror, bare))
	other := podObject("a", "other")
	at(other, "spec")["nodeName"] = "gpu-2"
	f.set(func() { f.put(podKey(other), other); f.admin = true })
	cordoned := false
	d := f.driver(&cordoned)
	since := time.Date(2024, 5, 3, 10, 0, 1, 0, time.UTC)
	require.Equal(t, []task.Workload{
		{Name: "a/web", Kind: "kubernetes", Since: since}, {Name: "b/web", Kind: "kubernetes", Since: since}, {Name: "a/dns", Kind: "kubernetes", Since: since},
	}, listed(t, d))
	f.set(func() {
		f.admin = false
		for i := range 3 * kubePage {
			p := podObject("many", fmt.Sprintf("p%03d", i))
			f.put(podKey(p), p)
		}
	})
	require.Len(t, listed(t, d), 3*kubePage+3)
	require.Empty(t, f.seen())
}

// TestKubernetesLargePods: a list of pods that are as large as an object can be fits into the limit
// of an answer, because it is read in pages.
func TestKubernetesLargePods(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 3<<19)
	f := newFakeKube(t)
	for i := range 22 {
		p := podObject("a", fmt.Sprintf("p%02d", i), mirror)
		at(at(p, "metadata"), "annotations")["large"] = large
		f.put(podKey(p), p)
	}
	cordoned := false
	require.Empty(t, listed(t, f.driver(&cordoned)))
}

// TestKubernetesEndless: the driver reads an answer only up to its limit.
func TestKubernetesEndless(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	cordoned := false
	d := f.driver(&cordoned)
	var stopped error
	f.set(func() {
		f.before = func(w http.ResponseWriter, _ *http.Request) bool {
			for chunk, n := make([]byte, 1<<20), 0; n < 3*kubeBytes && stopped == nil; n += len(chunk) {
				_, stopped = w.Write(chunk)
			}
			return true
		}
	})
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "more than 33554432 bytes")
	f.set(func() { require.Error(t, stopped, "the driver closed the connection") })
}

// TestKubernetesDrain: a drain cordons the Node object before it evicts, waits for pods that a
// disruption budget protects, and reports the budget.
func TestKubernetesDrain(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "db"), podObject("a", "web"), podObject("a", "agent", owner("DaemonSet")))
	f.budget["db"] = true
	cordoned := true
	d := f.driver(&cordoned)
	drain := func(now func() time.Time) task.DrainResult {
		out, err := Drain{Workloads: d, Now: now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Hour)}))
		require.NoError(t, err)
		r, ok := out.(task.DrainResult)
		require.True(t, ok)
		return r
	}
	polls := 0
	r := drain(func() time.Time { // the deadline passes with the fourth list
		polls++
		return time.Now().Add(time.Duration(polls/4) * 2 * time.Hour)
	})
	require.Equal(t, []string{"a/web"}, r.Stopped)
	require.Len(t, r.Blocked, 1)
	require.Equal(t, "a/db", r.Blocked[0].Workload)
	require.Contains(t, r.Blocked[0].Reason, "The disruption budget web needs 2 healthy pods and has 2 currently: a disruption budget allows no eviction now")
	require.Equal(t, []string{
		"PATCH /api/v1/nodes/gpu-1?fieldManager=gpuaas-node-agent", "POST /api/v1/namespaces/a/pods/db/eviction?", "POST /api/v1/namespaces/a/pods/web/eviction?",
	}, f.seen()[:3])
	require.Less(t, len(f.seen()), 3+polls-1, "the eviction that was refused is not repeated at each poll")
	require.True(t, f.unschedulable())

	f.set(func() { delete(f.budget, "db"); clear(d.refused) })
	require.Equal(t, []string{"a/db"}, drain(time.Now).Stopped)
	require.NotNil(t, f.get("/api/v1/namespaces/a/pods/agent"))
}

// TestKubernetesForce: force deletes the pods that no eviction ends, with the UID that the list
// had.
func TestKubernetesForce(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "bare", bare), podObject("a", "db"), podObject("a", "slow"))
	f.budget["db"], f.ignores = true, true
	cordoned := true
	d := f.driver(&cordoned)
	looks := 0
	now := func() time.Time { // the deadline passes with the third look, after each pod was asked
		looks++
		return time.Now().Add(time.Duration(looks/3) * 2 * time.Hour)
	}
	out, err := Drain{Workloads: d, Now: now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Hour)}))
	require.NoError(t, err)
	reasons := fmt.Sprint(out)
	require.Contains(t, reasons, "the pod has no controller")
	require.Contains(t, reasons, "disruption budget")
	require.Contains(t, reasons, "kubernetes was asked to stop and still ran")
	require.NotNil(t, f.get("/api/v1/namespaces/a/pods/bare"))

	out, err = Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now(), Force: true}))
	require.NoError(t, err)
	require.Equal(t, task.DrainResult{Stopped: []string{"a/bare", "a/db", "a/slow"}}, out)
}

// TestKubernetesSameName: a pod that replaced another one of the same name is not the one that
// was listed.
func TestKubernetesSameName(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "db-0"))
	cordoned := true
	d := f.driver(&cordoned)
	require.Equal(t, []string{"a/db-0"}, names(listed(t, d)))
	f.set(func() {
		p := podObject("a", "db-0")
		f.put(podKey(p), p)
	})
	require.ErrorContains(t, d.Stop(t.Context(), "a/db-0"), "UID")
	require.ErrorContains(t, d.Kill(t.Context(), "a/db-0"), "UID")
	require.NotNil(t, f.get("/api/v1/namespaces/a/pods/db-0"))
	require.Equal(t, []string{"a/db-0"}, names(listed(t, d)))
	require.NoError(t, d.Stop(t.Context(), "a/db-0"))
	require.NoError(t, d.Stop(t.Context(), "a/db-0"), "it does not exist")
	require.NoError(t, d.Stop(t.Context(), "a/../b"), "it is not listed")
	require.NoError(t, d.Kill(t.Context(), "a/db-0"))
	require.Empty(t, listed(t, d))
}

// TestKubernetesNoEvictionWithoutCordon: the driver evicts no pod that the scheduler may place
// on the node again.
func TestKubernetesNoEvictionWithoutCordon(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "web"))
	cordoned := false
	d := f.driver(&cordoned)
	require.ErrorContains(t, d.Stop(t.Context(), "a/web"), "not cordoned")
	f.set(func() {
		cordoned = true
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch {
				reject(w, http.StatusForbidden, "no \x1b[2J rights")
			}
			return r.Method == http.MethodPatch
		}
	})
	err := d.Stop(t.Context(), "a/web")
	require.EqualError(t, err, "no pod is evicted before the node is unschedulable: the Kubernetes API server answers 403: no ?[2J rights")
	require.ErrorContains(t, d.Kill(t.Context(), "a/web"), "no pod is evicted")
	require.NotNil(t, f.get("/api/v1/namespaces/a/pods/web"))
}

// TestKubernetesHostile: no answer of an API server makes the driver fail in another way than
// with a bounded, printable error.
func TestKubernetesHostile(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "web"))
	cordoned := true
	d := f.driver(&cordoned)
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   string
	}{
		"large":    {func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, kubeBytes+1)) }, "more than 33554432 bytes"},
		"no JSON":  {func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }, "cannot be parsed"},
		"message":  {func(w http.ResponseWriter) { reject(w, 500, strings.Repeat("\x00é", 3000)) }, "answers 500: ?"},
		"text":     {func(w http.ResponseWriter) { w.WriteHeader(502); _, _ = w.Write([]byte("bad\r\ngateway")) }, "answers 502: bad??gateway"},
		"redirect": {func(w http.ResponseWriter) { w.Header().Set("Location", "https://other.test/"); w.WriteHeader(302) }, "answers 302"},
		"limited":  {func(w http.ResponseWriter) { reject(w, 429, "too many requests") }, "answers 429: too many requests"},
		"endless": {func(w http.ResponseWriter) {
			answer(w, object{"metadata": object{"name": "gpu-1", "uid": "u", "continue": "x"}, "items": []any{}})
		}, "empty page"},
		"many": {func(w http.ResponseWriter) {
			answer(w, object{"metadata": object{"name": "gpu-1", "uid": "u", "continue": "x"}, "items": make([]any, kubePage)})
		}, "more than 2000 objects"},
		"names": {func(w http.ResponseWriter) {
			answer(w, object{"metadata": object{"name": "gpu-1", "uid": "u"}, "items": []any{podObject("..", "a/b")}})
		}, "a pod without name"},
		"another node": {func(w http.ResponseWriter) {
			p := podObject("a", "b")
			at(p, "metadata")["uid"], at(p, "spec")["nodeName"] = "u", "gpu-2"
			answer(w, object{"metadata": object{"name": "gpu-1", "uid": "u"}, "items": []any{p}})
		}, "or of another node"},
		"another Node object": {func(w http.ResponseWriter) { answer(w, nodeObject("gpu-2")) }, "not the requested Node"},
	} {
		f.set(func() { f.before = func(w http.ResponseWriter, _ *http.Request) bool { c.answer(w); return true } })
		_, err := d.List(t.Context())
		require.ErrorContains(t, err, c.want, name)
		require.Less(t, len(err.Error()), 400, name)
		require.NotContains(t, err.Error(), "\x00", name)
	}
}

// TestKubernetesOtherMachine: a driver that is configured with the name of another node changes
// nothing there.
func TestKubernetesOtherMachine(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "web"))
	cordoned := true
	d := f.driver(&cordoned)
	d.connections.machine = "3f2a"
	f.set(func() { at(f.objects["/api/v1/nodes/gpu-1"], "status")["nodeInfo"] = object{"machineID": "77bc"} })
	for _, err := range []error{second(d.List(t.Context())), d.Cordon(t.Context(), true), d.Stop(t.Context(), "a/web"), d.Kill(t.Context(), "a/web"), d.Leave(t.Context())} {
		require.ErrorContains(t, err, "the Node object gpu-1 is that of another machine: correct GPUAAS_KUBERNETES_NODE")
	}
	require.Empty(t, f.seen())
	f.set(func() { at(f.objects["/api/v1/nodes/gpu-1"], "status")["nodeInfo"] = object{"machineID": "3f2a"} })
	require.NoError(t, d.Stop(t.Context(), "a/web"))
}

func second(_ []task.Workload, err error) error { return err }

// TestKubernetesTokenIsNotQuoted: a proxy that quotes the request's header reveals no token.
func TestKubernetesTokenIsNotQuoted(t *testing.T) {
	t.Parallel()
	const token = "an-example-of-a-token"
	f := newFakeKube(t)
	f.set(func() {
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "cannot forward "+r.Header.Get("Authorization"))
			return true
		}
	})
	cordoned := true
	d := f.driver(&cordoned)
	api, err := d.connect()
	require.NoError(t, err)
	api.token = token
	_, err = d.List(t.Context())
	require.ErrorContains(t, err, "cannot forward Bearer [hidden]")
	require.NotContains(t, err.Error(), token)
}

// TestKubernetesCriticalLast: a pod on which the cluster depends is evicted once no other pod is
// left on the node.
func TestKubernetesCriticalLast(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "dns", critical), podObject("a", "web"))
	cordoned := true
	d := f.driver(&cordoned)
	listed(t, d)
	require.ErrorContains(t, d.Stop(t.Context(), "a/dns"), "evicted after the others")
	require.NoError(t, d.Stop(t.Context(), "a/web"))
	f.set(func() { delete(f.objects, podKey(podObject("a", "web"))) })
	listed(t, d)
	require.NoError(t, d.Stop(t.Context(), "a/dns"))
}
