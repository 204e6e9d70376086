package clusteragent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// adminAPI is a double of the admin API.
type adminAPI struct {
	mu      sync.Mutex
	nodes   map[string]wire.NodeView
	reports map[string][]health.Report
	refuse  map[string]schema.Kind
	token   string
}

func (a *adminAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	rest, _ := strings.CutPrefix(r.URL.Path, "/api/v1/admin/nodes/")
	host, conditions := strings.CutSuffix(rest, "/conditions")
	n, ok := a.nodes[host]
	var refused *schema.Error
	switch {
	case r.Header.Get("Authorization") != "Bearer "+a.token:
		refused = schema.NewError(schema.KindUnauthenticated, "no token")
	case a.refuse[host] != "":
		refused = schema.NewError(a.refuse[host], "refused")
	case !ok:
		refused = schema.NewError(schema.KindNotFound, "no node %s", host)
	}
	if refused != nil {
		w.WriteHeader(http.StatusTeapot)
		_ = json.NewEncoder(w).Encode(refused.Body("id"))
		return
	}
	if !conditions || r.Method != http.MethodPut {
		_ = json.NewEncoder(w).Encode(n)
		return
	}
	var report health.Report
	if err := json.NewDecoder(r.Body).Decode(&report); err != nil || report.Validate() != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a.reports[host] = append(a.reports[host], report)
	_, _ = w.Write([]byte(`{"accepted":true}`))
}

// count returns how many reports of a node there are.
func (a *adminAPI) count(host string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.reports[host])
}

// joined returns a rig whose agent is joined to a control plane that has all its nodes.
func joined(t *testing.T, names ...string) (*rig, *adminAPI, *httptest.Server) {
	t.Helper()
	r := newRig(t, names...)
	api := &adminAPI{nodes: map[string]wire.NodeView{}, reports: map[string][]health.Report{}, refuse: map[string]schema.Kind{}, token: "t"}
	for _, name := range names {
		api.nodes[name] = wire.NodeView{Host: name, State: lifecycle.NodeActive, StateSince: r.at.Add(-time.Hour)}
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	control, err := newControlPlane(server.URL, schema.NewSecret("t"), "")
	require.NoError(t, err)
	r.options = []option{withControlPlane(control)}
	return r, api, server
}

// A joined agent reports each change at once and otherwise before the conditions expire, and
// restarts nothing.
func TestJoinedReports(t *testing.T) {
	t.Parallel()
	r, api, _ := joined(t, "a", "b")
	r.pass(4 * time.Minute)
	require.Equal(t, 1, api.count("a"))
	r.pass(2 * time.Minute)
	require.Equal(t, 2, api.count("a"))
	r.ready("a", corev1.ConditionFalse)
	began := r.at
	r.pass(time.Minute)
	require.Equal(t, 3, api.count("a"))
	require.Equal(t, 2, api.count("b"))
	last := api.reports["a"][2]
	require.Equal(t, "boot-1", last.BootID)
	require.Equal(t, health.Condition{Checker: "node_ready", Status: health.Unhealthy, Reason: "KubeletNotReady", Repair: health.RepairReboot, Since: began, Samples: 1}, last.Conditions[0])
	r.pass(time.Hour)
	require.Empty(t, r.executor.reboots)
	r.phase("a", health.PhaseUnhealthy)
}

// A node that the control plane does not have, or refuses, does not stop the others. Without a
// response, the agent sends all again later.
func TestJoinedErrors(t *testing.T) {
	t.Parallel()
	r, api, server := joined(t, "a", "b", "c")
	delete(api.nodes, "a")
	api.refuse["b"] = schema.KindForbidden
	r.pass(4 * time.Minute)
	require.Equal(t, 1, api.count("c"))
	require.Equal(t, 1, strings.Count(r.log.String(), "the control plane has no node with this name"))
	require.InDelta(t, 4, testutil.ToFloat64(r.agent.metrics.errors.WithLabelValues(errorReport)), 0)
	delete(api.refuse, "b")
	r.pass(2 * time.Minute)
	require.Equal(t, 1, api.count("b"))

	server.Close()
	r.ready("c", corev1.ConditionFalse)
	before := testutil.ToFloat64(r.agent.metrics.errors.WithLabelValues(errorReport))
	r.pass(10 * time.Second)
	require.InDelta(t, before+1, testutil.ToFloat64(r.agent.metrics.errors.WithLabelValues(errorReport)), 0, "the round ends at the first")
	require.Empty(t, r.executor.reboots)
	require.NotContains(t, r.log.String(), `"Bearer`)
}

// The Node object of a machine that the control plane removed or terminated is deleted, if it is not
// ready and older than that.
func TestJoinedDeletesNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		node    func(n *wire.NodeView, at time.Time)
		ready   bool
		monitor bool
		deleted bool
	}{
		{"active", func(*wire.NodeView, time.Time) {}, false, false, false},
		{"removed", func(n *wire.NodeView, at time.Time) { n.State, n.StateSince = lifecycle.NodeRemoved, at }, false, false, true},
		{"removed, monitor-only", func(n *wire.NodeView, at time.Time) { n.State, n.StateSince = lifecycle.NodeRemoved, at }, false, true, false},
		{"removed, but ready", func(n *wire.NodeView, at time.Time) { n.State, n.StateSince = lifecycle.NodeRemoved, at }, true, false, false},
		{"removed before the Node object was created", func(n *wire.NodeView, at time.Time) {
			n.State, n.StateSince = lifecycle.NodeRemoved, at.Add(-24*time.Hour)
		}, false, false, false},
		{"another host", func(n *wire.NodeView, at time.Time) { n.Host, n.State, n.StateSince = "b", lifecycle.NodeRemoved, at }, false, false, false},
		{"terminated", func(n *wire.NodeView, at time.Time) {
			n.State, n.Instance = lifecycle.NodeRegistered, &lifecycle.Instance{State: lifecycle.InstanceTerminated, StateSince: at}
		}, false, false, true},
		{"terminated before the Node object was created", func(n *wire.NodeView, at time.Time) {
			n.State, n.Instance = lifecycle.NodeRegistered, &lifecycle.Instance{State: lifecycle.InstanceTerminated, StateSince: at.Add(-24 * time.Hour)}
		}, false, false, false},
		{"the next machine", func(n *wire.NodeView, at time.Time) {
			n.State, n.Instance = lifecycle.NodeRegistered, &lifecycle.Instance{State: lifecycle.InstanceProvisioning, StateSince: at}
		}, false, false, false},
		{"registered now", func(n *wire.NodeView, at time.Time) { n.State, n.StateSince = lifecycle.NodeRegistered, at }, false, false, false},
		{"terminating", func(n *wire.NodeView, at time.Time) { n.State, n.StateSince = lifecycle.NodeTerminating, at }, false, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r, api, _ := joined(t, "a")
			r.settings.monitorOnly = test.monitor
			r.pass(time.Minute)
			n := api.nodes["a"]
			test.node(&n, r.at)
			api.nodes["a"] = n
			if !test.ready {
				r.ready("a", corev1.ConditionUnknown)
			}
			r.pass(5 * time.Minute)
			require.Empty(t, deletions(r), "before the threshold")
			r.pass(10 * time.Minute)
			if test.monitor {
				require.Equal(t, 1, strings.Count(r.log.String(), "would delete the Node object"))
				require.Equal(t, 1, r.actions("a", actionDelete, modeMonitor))
			}
			if !test.deleted {
				require.Empty(t, deletions(r))
				return
			}
			require.Len(t, deletions(r), 1)
			options := deletions(r)[0].GetDeleteOptions()
			require.NotNil(t, options.Preconditions.UID)
			require.NotNil(t, options.Preconditions.ResourceVersion)
			_, err := r.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			require.Error(t, err)
		})
	}
}

func deletions(r *rig) (all []clienttesting.DeleteActionImpl) {
	for _, a := range r.client.Actions() {
		if d, ok := a.(clienttesting.DeleteActionImpl); ok && a.GetResource().Resource == "nodes" {
			all = append(all, d)
		}
	}
	return all
}

// A response that is not from the admin API is a connection error: its text is not repeated.
func TestForeignResponse(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://other.example.com", http.StatusFound)
	}))
	t.Cleanup(server.Close)
	c, err := newControlPlane(server.URL, schema.NewSecret("t"), "")
	require.NoError(t, err)
	_, err = c.node(t.Context(), "a")
	require.ErrorContains(t, err, "responds 302 without an error envelope")
	require.Equal(t, unreachable, schema.AsError(err).Reason)
	_, err = newControlPlane(server.URL, schema.NewSecret("t"), "missing.pem")
	require.ErrorContains(t, err, "GPUAAS_API_CA_FILE")
}
