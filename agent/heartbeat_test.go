package agent

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestRefusedHeartbeat: the server refuses each poll with a heartbeat. The node still
// receives tasks, by polls without one.
func TestRefusedHeartbeat(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	seen := 0
	f.OnWait = func(int) error {
		refuse := false
		f.Note(func() { refuse, seen = len(f.Heartbeats) > seen, len(f.Heartbeats) })
		if refuse {
			return schema.NewError(schema.KindInvalidRequest, "heartbeat: boot_id is too long").WithReason("bad_boot_id")
		}
		return nil
	}
	a := start(t, configFor(f), Deps{Executors: script{task.FactsCollect: counting(new(atomic.Int32))}.executors()})
	f.Offers <- f.OfferOf(f.Payload(task.FactsCollect, 1, nil), 1)
	f.Until("the result of a task", func() bool { return len(f.Results) == 1 })
	require.Contains(t, a.log.String(), "bad_boot_id")
}
