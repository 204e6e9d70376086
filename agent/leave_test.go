package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// leaving is a driver with a record of the node in another system, which stays.
type leaving struct {
	workload.Unmanaged
	asked *atomic.Bool
}

// Leave implements workload.Leaver.
func (l leaving) Leave(context.Context) error {
	l.asked.Store(true)
	return errors.New("the record stays; type: kubectl delete node gpu-1")
}

// TestLeaveReported: a record that the driver could not delete does not keep the node from being
// removed, and the output of the task says what to type.
func TestLeaveReported(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	a := start(t, c, Deps{Workloads: leaving{asked: new(atomic.Bool)}})
	p := f.Payload(task.WipeIdentity, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	a.ends(t)
	require.NoError(t, a.err)
	r := f.Result(p.TaskID)
	require.Equal(t, task.Succeeded, r.Status)
	require.Contains(t, r.OutputTail, "type: kubectl delete node gpu-1")
	require.NoFileExists(t, c.KeyPath)
}

// TestLeaveOfACanceledWipe: the record stays if the server does not confirm that the wipe is still wanted, for
// example after the machine was suspended.
func TestLeaveOfACanceledWipe(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"wanted": nil, "canceled": errors.New("the task was canceled")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := leaving{asked: new(atomic.Bool)}
			m := workload.NewMonitor(driver, time.Now, func() {}, slog.New(slog.DiscardHandler))
			_, err := deleteRecords(m)(t.Context(), runner.Task{Confirm: func(context.Context, time.Duration) error { return answer }})
			require.ErrorIs(t, err, answer)
			require.Equal(t, answer == nil, driver.asked.Load())
		})
	}
}
