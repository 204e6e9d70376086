package console_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

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
