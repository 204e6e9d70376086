package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// TestRemovalForgetsTheReports: the end of a removal deletes what the node and the cluster agent reported,
// with the privileges of a worker. A later report stores nothing, the gauges count the node no longer, and
// its host starts without conditions when it is registered again. The history stays.
func TestRemovalForgetsTheReports(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	e.declare("base", map[string]string{"driver": "2"})
	c, _, _ := e.enroll()
	e.exec("UPDATE nodes SET state = 'active', recovery_key = NULL")
	ofHost, ofCluster := report(time.Now(), unhealthy("gpu", "GPU-0", "Fallen")), report(time.Now(), unhealthy("node_ready", "", "NotReady"))
	sent := wire.Heartbeat{BootID: "a", Health: ofHost, Artifacts: map[string]string{"driver": "1"}}
	require.NoError(t, e.Heartbeat(ctx, c, sent))
	_, err := e.ReportHealth(ctx, e.node(c.NodeID), *ofCluster)
	require.NoError(t, err)
	require.Equal(t, 1, e.scan().Drifted)
	require.Len(t, e.node(c.NodeID).Conditions, 2)
	kept := func() (tables []string) {
		for _, table := range []string{"conditions", "health_reports", "node_artifacts", "node_drifts", "signal_counts"} {
			if e.number("SELECT count(*) FROM "+table) > 0 {
				tables = append(tables, table)
			}
		}
		return tables
	}
	require.Len(t, kept(), 5)
	counts, err := e.ConditionCounts(ctx)
	require.NoError(t, err)
	require.Len(t, counts, 2)
	signals := len(e.signalsOf(c.NodeID))

	f := e.claim(c.NodeID, lifecycle.ActionRetire).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired}))
	f = e.claim(c.NodeID, lifecycle.ActionRemove).Fence
	worker, err := store.Open(ctx, store.Config{URL: pgtest.As(e.url, store.RoleWorker), MaxConns: 2})
	require.NoError(t, err)
	t.Cleanup(worker.Close)
	require.NoError(t, worker.Operations.Finish(ctx, f, "", activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved,
		Instance: lifecycle.InstanceTerminated, DenyIdentity: true}))
	require.Empty(t, kept())
	require.Len(t, e.signalsOf(c.NodeID), signals)
	counts, err = e.ConditionCounts(ctx)
	require.NoError(t, err)
	require.Empty(t, counts)

	requireKind(t, e.Heartbeat(ctx, c, sent), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{BootID: "a", Artifacts: sent.Artifacts}))
	_, err = e.ReportHealth(ctx, wire.NodeView{ID: c.NodeID, Incarnation: c.Incarnation}, *ofCluster)
	require.Error(t, err)
	require.Zero(t, e.scan().Drifted)
	require.Empty(t, kept())

	again := e.register(func(r *wire.RegisterNodeRequest) { r.Host = c.Host })
	require.NotEqual(t, c.NodeID, again.ID)
	require.Equal(t, []signal.Condition(nil), e.node(c.Host).Conditions)
	require.Empty(t, e.signalsOf(again.ID))
}
