package console_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A form that is shown again has what was chosen: a cordon does not become a drain because the host name
// was mistyped.
func TestRefusedFormKeepsItsValues(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backend.node(busy())
	form := url.Values{"reason": {"RMA-4411"}, "key": {"key-2"}, "minutes": {"30"}, "cordon_only": {"true"}, "typed": {"gpu-71"}}
	w := s.login(trust.RoleOperator).do(http.MethodPost, "/console"+nodePath+"/drain", form)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), `name="cordon_only" value="true" checked>`)
	require.Contains(t, w.Body.String(), `type="number" value="30"`)

	form.Del("cordon_only")
	require.NotContains(t, s.do(http.MethodPost, "/console"+nodePath+"/drain", form).Body.String(), " checked>")
	require.NotContains(t, s.get("/console"+nodePath+"/drain").Body.String(), " checked>")
}

// The heading says how many rows are not shown.
func TestOverviewOfManyRows(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backend.fleet()
	list := wire.StuckList{More: 7, MoreNodes: 5}
	for range 101 {
		list.Stuck = append(list.Stuck, parked())
	}
	s.backend.answer("GET /stuck", list)
	running := parked().OperationSummary
	running.Status, running.Stuck = lifecycle.OperationRunning, nil
	var open []wire.OperationSummary
	for range 53 {
		open = append(open, running)
	}
	s.backend.answer("GET /operations", wire.OperationList{Operations: open})
	page := s.login(trust.RoleViewer).get("/console/").Body.String()
	require.Contains(t, page, `<span class="number">100, 13 more</span>`)
	require.Contains(t, page, `<span class="number">50, 3 more</span>`)
}
