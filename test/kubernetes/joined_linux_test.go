package kubernetes

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestJoined joins the cluster agent to a control plane: a node of the control plane has the
// conditions of its Node object, and the Node object of a removed node is deleted. Nothing restarts.
func TestJoined(t *testing.T) {
	s := newSite(t)
	const removed, unknown = "removed-1", "unknown-1"
	s.run("node", "register", removed, "--sku", "cpu-dev", "--region", "local")
	w := newWatched(shared{t, s.cluster}, host, removed, unknown)
	control := []string{"CIVO_NODE_AGENT_MONITOR_ONLY=false", "GPUAAS_API_URL=" + s.stack.Getenv("GPUAAS_API_URL"),
		"GPUAAS_API_TOKEN=" + s.stack.Getenv("GPUAAS_API_TOKEN")}
	if file := s.stack.Getenv("GPUAAS_API_TOKEN_FILE"); file != "" {
		control = append(control, "GPUAAS_API_TOKEN_FILE="+file)
	}
	a := w.run(control...)
	condition := func(checker string) (status, reason string) {
		var n struct {
			Conditions []struct{ Source, Checker, Status, Reason string } `json:"conditions"`
		}
		require.NoError(t, json.Unmarshal([]byte(s.run("node", "show", host, "-o", "json")), &n))
		for _, c := range n.Conditions {
			if c.Source == string(health.SourceCluster) && c.Checker == checker {
				return c.Status, c.Reason
			}
		}
		return "", ""
	}
	s.eventually("the node is healthy", func() bool {
		status, reason := condition("cilium")
		return status == string(health.Healthy) && reason == "CiliumIsUp"
	})
	w.set(host, func(status map[string]any) { status["conditions"] = conditions("True", "True", "False") })
	s.eventually("the control plane has the fault", func() bool {
		status, reason := condition("disk_pressure")
		return status == string(health.Unhealthy) && reason == "KubeletHasDiskPressure"
	})

	for _, name := range []string{host, removed, unknown} {
		w.die(name)
	}
	s.run("node", "remove", removed, "--yes", "--reason", "test", "--wait")
	w.phase(a, "Unhealthy", host, removed, unknown)
	a = w.later(a, 6*time.Minute, control...)
	w.eventually("the Node object of the removed node is deleted", func() bool { return !w.exists(removed) })
	w.eventually("its series end", func() bool { return a.metric(t, "recovery_phase", "node", removed) == "" })
	require.True(t, w.exists(host), "the control plane has its machine")
	require.True(t, w.exists(unknown), "the control plane does not have it")
	require.Empty(t, w.civo.restarts())
	require.Equal(t, lifecycle.NodeActive, s.show().State)
}

// exists reports whether there is a Node object.
func (w *watched) exists(name string) bool {
	w.t.Helper()
	_, err := w.c.AsAdmin().Do(context.WithoutCancel(w.t.Context()), http.MethodGet, "/api/v1/nodes/"+name, nil, nil)
	return code(w.t, err) != http.StatusNotFound
}
