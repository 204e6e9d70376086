package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// An operator stores a template at one replica, a node reports to another, and both show the drift, each
// with the privileges of its side.
func TestDriftByHTTP(t *testing.T) {
	c := newCluster(t)
	one, two := c.replica(), c.replica()
	m := one.enrolled()
	a := one.ask(http.MethodPut, "/templates/dev", `{"skus":["cpu-dev"],"artifacts":{"kernel":"6.8"}}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	drift := func(r *replica) (d template.Report) {
		t.Helper()
		r.ask(http.MethodGet, "/nodes/"+m.id+"/drift", nil).into(t, &d)
		return d
	}
	require.Equal(t, template.StatusUnknown, drift(two).Status)
	heartbeat := func(artifacts map[string]string) reply {
		return two.report(m, wire.Heartbeat{AgentVersion: "v1", BootID: "b", Phase: wire.PhaseReady, At: time.Now(), Artifacts: artifacts})
	}
	require.Equal(t, http.StatusNoContent, heartbeat(map[string]string{"kernel": "6.9"}).status)
	for _, r := range []*replica{one, two} {
		d := drift(r)
		require.True(t, d.Drifted)
		assert.Equal(t, "6.9", d.Update[0].Reported)
	}
	require.Equal(t, http.StatusNoContent, heartbeat(nil).status)
	require.True(t, drift(one).Drifted, "a heartbeat without artifacts keeps the last report")
	require.Equal(t, http.StatusBadRequest, heartbeat(map[string]string{"kernel": strings.Repeat("x", 129)}).status)
	require.Equal(t, http.StatusNoContent, heartbeat(map[string]string{"kernel": "6.8"}).status)
	require.Equal(t, template.StatusInSync, drift(one).Status)
	a = two.ask(http.MethodPost, "/templates/dev/delete", nil)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	require.Equal(t, template.StatusNoTemplate, drift(one).Status)
}
