package server

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A node and the cluster agent report to two replicas, each with the privileges of its side. Both
// replicas show the conditions, and each change as one signal.
func TestSignalsByHTTP(t *testing.T) {
	c := newCluster(t)
	one, two := c.replica(), c.replica()
	m := one.enrolled()
	at := time.Now().UTC().Add(-time.Minute)
	report := func(at time.Time, checker string, s health.Status) *health.Report {
		found := health.Condition{Checker: checker, Status: s, Reason: "R", Since: at}
		if s == health.Unhealthy {
			found.Repair, found.Detail = health.RepairReboot, "fallen off the bus"
		}
		return &health.Report{At: at, BootID: "b", Conditions: []health.Condition{found}}
	}
	heartbeat := func(r *replica, h *health.Report) {
		t.Helper()
		a := r.report(m, wire.Heartbeat{AgentVersion: "v1", BootID: "b", Phase: wire.PhaseReady, At: time.Now(), Health: h})
		require.Equal(t, http.StatusNoContent, a.status, string(a.body))
	}
	for _, r := range []*replica{one, two} {
		heartbeat(r, report(at, "gpu_xid", health.Unhealthy))
		text, err := json.Marshal(report(at, "node_ready", health.Unhealthy))
		require.NoError(t, err)
		a := r.ask(http.MethodPut, "/nodes/"+m.id+"/conditions", string(text))
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		assert.JSONEq(t, `{"accepted":true}`, string(a.body))
	}
	heartbeat(two, report(at.Add(time.Second), "gpu_xid", health.Healthy))
	for _, r := range []*replica{one, two} {
		var list signal.List
		r.ask(http.MethodGet, "/nodes/"+m.id+"/signals?type=health.*", nil).into(t, &list)
		var got []string
		for _, s := range list.Signals {
			got = append(got, string(s.Type)+" "+string(s.Status)+" "+string(s.Source))
		}
		assert.Equal(t, []string{"health.gpu_xid healthy agent", "health.node_ready unhealthy cluster-agent", "health.gpu_xid unhealthy agent"}, got)
		r.ask(http.MethodGet, "/signals?status=unhealthy&sku=cpu-dev&since=1h", nil).into(t, &list)
		assert.Len(t, list.Signals, 2)
		shown := r.show(m.id).Conditions
		require.Len(t, shown, 2)
		assert.Equal(t, "node_ready", shown[0].Checker, "the unhealthy one is first")
	}
}
