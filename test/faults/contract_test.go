package faults_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
)

// TestStoreContract: the store on Postgres and the one in memory, on which TestSeededWork
// runs, follow the same rules.
func TestStoreContract(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) { t.Parallel(); storetest.Contract(t, inMemory) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); storetest.Contract(t, onPostgres) })
}

func inMemory(*testing.T) storetest.Subject {
	s, hosts := storetest.NewStore(time.Now), 0
	return storetest.Subject{
		Records: s, Tasks: s, Ledger: s, Now: time.Now,
		Register: func(_ *testing.T, state lifecycle.NodeState) (string, string) {
			hosts++
			n := s.Register(fmt.Sprintf("node-%d", hosts), "manual", state)
			return n.ID, n.Host
		},
		Dispatch: func(t *testing.T, _, taskID string) int64 {
			t.Helper()
			_, epoch, ok := s.Dispatch(taskID)
			require.True(t, ok)
			return epoch
		},
		Report:   func(_, taskID string, r task.Result) error { return s.Report(taskID, r) },
		Abandon:  func(id, _ string) error { s.Abandon(id); return nil },
		Continue: func(id, _ string) error { s.Continue(id); return nil },
	}
}

func onPostgres(t *testing.T) storetest.Subject {
	t.Helper()
	w := newWorld(t, false)
	polls := int64(0)
	caller := func(nodeID string) nodeapi.Caller { return nodeapi.Caller{NodeID: nodeID, Incarnation: 1} }
	return storetest.Subject{
		Records: w.store.Operations, Tasks: w.store.Tasks, Ledger: w.store.Operations, Now: w.db.clock.Now,
		Register: func(t *testing.T, state lifecycle.NodeState) (string, string) {
			t.Helper()
			w.runs++
			n, err := w.store.Admin.Register(t.Context(), schema.NewID(),
				wire.RegisterNodeRequest{Host: fmt.Sprintf("node-%d", w.runs), SKU: "cpu-dev", RegionCode: "region-1"}, operator)
			require.NoError(t, err)
			_, err = w.db.raw.Exec(t.Context(), "UPDATE nodes SET state = $2 WHERE node_id = $1", n.ID, state)
			require.NoError(t, err)
			return n.ID, n.Host
		},
		Dispatch: func(t *testing.T, nodeID, taskID string) int64 {
			t.Helper()
			polls++
			offer, err := w.store.Tasks.NextTask(t.Context(), caller(nodeID), wire.PollRequest{AgentSession: "boot-1", PollSeq: polls}, task.LeaseDuration, nil)
			require.NoError(t, err)
			require.NotNil(t, offer)
			require.Equal(t, taskID, offer.TaskID)
			return offer.Lease.Epoch
		},
		Report: func(nodeID, taskID string, r task.Result) error {
			_, err := w.store.Tasks.Result(t.Context(), caller(nodeID), taskID, nodeapi.ReceivedResult{Result: r})
			return err
		},
		Abandon: func(id, runID string) error {
			_, err := w.store.Operations.Abandon(t.Context(), id, runID, lifecycle.RunTerminated)
			return err
		},
		Continue: func(id, runID string) error { return w.store.Operations.Continue(t.Context(), id, runID) },
	}
}
