package workload

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
)

// TestKubernetesWarnings: what a list shows about pods before a drain.
func TestKubernetesWarnings(t *testing.T) {
	t.Parallel()
	volumes := func(all ...any) func(object) { return func(o object) { at(o, "spec")["volumes"] = all } }
	claim := func(name string) any { return object{"name": "v", "persistentVolumeClaim": object{"claimName": name}} }
	f := newFakeKube(t, podObject("a", "a-bare", bare, volumes(object{"emptyDir": object{}})), podObject("a", "b-budget"),
		podObject("a", "c-local", volumes(claim("local"))), podObject("a", "d-remote", volumes(claim("remote"), object{"configMap": object{}})),
		podObject("a", "e-host", volumes(object{"hostPath": object{"path": "/x"}})), podObject("a", "f-hidden", volumes(claim("hidden"), claim("../x"))))
	f.budget["b-budget"] = true
	for name, spec := range map[string]object{"local": {"local": object{"path": "/x"}}, "remote": {"csi": object{}}} {
		f.put("/api/v1/namespaces/a/persistentvolumeclaims/"+name, object{"spec": object{"volumeName": "pv-" + name}})
		f.put("/api/v1/persistentvolumes/pv-"+name, object{"spec": spec})
	}
	cordoned := false
	d := f.driver(&cordoned)
	got := map[string]string{}
	for _, w := range listed(t, d) {
		got[w.Name] = w.Warning
	}
	require.Equal(t, warnBare+"; "+warnEmpty, got["a/a-bare"])
	require.Contains(t, got["a/b-budget"], "a disruption budget allows no eviction now: ")
	require.Equal(t, warnLocal, got["a/c-local"])
	require.Equal(t, warnLocal, got["a/e-host"])
	require.Empty(t, got["a/d-remote"]+got["a/f-hidden"])
	require.Empty(t, f.seen(), "nothing was changed")
	require.Len(t, d.warnings.known, 8, "answers are remembered")
	f.set(func() { f.objects = map[string]object{"/api/v1/nodes/gpu-1": f.objects["/api/v1/nodes/gpu-1"]} })
	require.Empty(t, listed(t, d))
	require.Empty(t, d.warnings.known, "answers about pods that ended are forgotten")
}

// dryRuns counts the evictions that only ask whether a budget allows them. answers, unless it is
// nil, answers them.
func (f *fakeKube) dryRuns(answers func(http.ResponseWriter, *http.Request) bool) *int {
	n := new(int)
	f.set(func() {
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/eviction") {
				return false
			}
			*n++
			return answers != nil && answers(w, r)
		}
	})
	return n
}

// TestKubernetesWarningsAreFew: a list asks the API server for 20 warnings. The later ones are part
// of the next list, which reuses the others for two minutes.
func TestKubernetesWarningsAreFew(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t)
	for i := range 25 {
		p := podObject("a", fmt.Sprintf("p%02d", i))
		f.put(podKey(p), p)
		f.budget[fmt.Sprintf("p%02d", i)] = true
	}
	asked, cordoned := f.dryRuns(nil), false
	synctest.Test(t, func(t *testing.T) {
		d := f.direct(&cordoned)
		warned := func() (n int) {
			for _, w := range listed(t, d) {
				if w.Warning != "" {
					n++
				}
			}
			return n
		}
		require.Equal(t, 20, warned())
		require.Equal(t, 20, *asked)
		require.Equal(t, 25, warned())
		require.Equal(t, 25, *asked)
		f.set(func() { clear(f.budget) })
		require.NoError(t, wait.Sleep(t.Context(), 2*time.Minute))
		require.Equal(t, 25, warned())
		require.Equal(t, 25, *asked)
		require.NoError(t, wait.Sleep(t.Context(), 1))
		require.Equal(t, 5, warned())
		require.Equal(t, 45, *asked)
		require.Zero(t, warned())
		require.Equal(t, 50, *asked)
	})
}

// TestKubernetesWarningsAreQuick: a list waits three seconds for the warnings, and is complete
// without them.
func TestKubernetesWarningsAreQuick(t *testing.T) {
	t.Parallel()
	f := newFakeKube(t, podObject("a", "web"), podObject("b", "web"))
	asked, cordoned := f.dryRuns(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }), false
	synctest.Test(t, func(t *testing.T) {
		d, start := f.direct(&cordoned), time.Now()
		require.Equal(t, []string{"a/web", "b/web"}, names(listed(t, d)))
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, 1, *asked, "the time is that of all requests")
	})
}

// TestKubernetesWarningStays: a request that fails does not remove the last warning. A node that
// must not ask any longer has none.
func TestKubernetesWarningStays(t *testing.T) {
	t.Parallel()
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { reject(w, code, "no"); return true }
	}
	for name, c := range map[string]struct {
		answers func(http.ResponseWriter, *http.Request) bool
		stays   bool
	}{
		"allowed":   {func(w http.ResponseWriter, _ *http.Request) bool { answer(w, object{}); return true }, false},
		"forbidden": {status(http.StatusForbidden), false},
		"absent":    {status(http.StatusNotFound), false},
		"error":     {status(http.StatusInternalServerError), true},
		"busy":      {status(http.StatusTooManyRequests), true},
		"late":      {func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeKube(t, podObject("a", "web"))
			f.budget["web"] = true
			cordoned := false
			synctest.Test(t, func(t *testing.T) {
				d := f.direct(&cordoned)
				require.NotEmpty(t, listed(t, d)[0].Warning)
				asked := f.dryRuns(c.answers)
				require.NoError(t, wait.Sleep(t.Context(), 3*time.Minute))
				require.Equal(t, c.stays, listed(t, d)[0].Warning != "")
				require.Equal(t, 1, *asked)
			})
		})
	}
}
