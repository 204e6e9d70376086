package worker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
)

// only is the one check of a report.
func only(t *testing.T, r *drillRun) diagnosis.Check {
	t.Helper()
	require.Len(t, r.report.Checks, 1)
	return r.report.Checks[0]
}

// A table that is empty in the dump is a fault. More rows than in the database are one only in tables from
// which nothing is deleted, and may be a restore.
func TestDrillRows(t *testing.T) {
	t.Parallel()
	now := store.DrillCounts{Nodes: 10, Operations: 10, Tasks: 10, AuditEvents: 10, Certificates: 10, VerifierSets: 1}
	for name, c := range map[string]struct {
		change func(*store.DrillCounts)
		result diagnosis.Result
		says   string
	}{
		"the same":        {func(*store.DrillCounts) {}, diagnosis.OK, "nodes 10 of 10"},
		"fewer":           {func(n *store.DrillCounts) { n.Nodes, n.Tasks = 8, 3 }, diagnosis.OK, "nodes 8 of 10"},
		"no nodes":        {func(n *store.DrillCounts) { n.Nodes = 0 }, diagnosis.Failed, "no nodes: "},
		"no certificates": {func(n *store.DrillCounts) { n.Certificates = 0 }, diagnosis.Failed, "no certificates: "},
		"more nodes":      {func(n *store.DrillCounts) { n.Nodes = 11 }, diagnosis.Info, "more nodes than the database"},
		"tasks that were deleted": {func(n *store.DrillCounts) {
			n.Tasks, n.Operations, n.AuditEvents, n.Certificates = 11, 11, 11, 11
		}, diagnosis.OK, "tasks 11 of 10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restored, r := now, &drillRun{}
			c.change(&restored)
			r.rows(now, restored)
			require.Equal(t, c.result, only(t, r).Result)
			require.Contains(t, only(t, r).Answer, c.says)
		})
	}
}

// A dump without audit events is a fault, and an old one needs attention.
func TestDrillAge(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]diagnosis.Result{time.Hour: diagnosis.OK, 24 * time.Hour: diagnosis.OK, 26 * time.Hour: diagnosis.Info} {
		r := &drillRun{}
		r.age(store.DrillCounts{NewestAudit: new(time.Now().Add(-age))})
		require.Equal(t, want, only(t, r).Result, age)
	}
	r := &drillRun{}
	r.age(store.DrillCounts{})
	require.Equal(t, diagnosis.Failed, only(t, r).Result)
}

// Operations that are open in a dump need restore mode after a restore.
func TestDrillOpenOperations(t *testing.T) {
	t.Parallel()
	r := &drillRun{}
	r.open(store.DrillCounts{Open: 3, Parked: 1})
	require.Equal(t, diagnosis.Info, only(t, r).Result)
	require.Contains(t, only(t, r).Answer, "3, of which 1 are parked")
}
