package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func drainTask(memo *bytes.Buffer, p task.DrainParams) execution.Task {
	return execution.Task{
		Payload:  task.Payload{Params: p.Encode()},
		Note:     func(string) {},
		Remember: func(v any) error { memo.Reset(); return json.NewEncoder(memo).Encode(v) },
		Recall:   func(any) (bool, error) { return false, nil },
		Paused:   func() bool { return false },
	}
}

func TestDrainRetriesDriverErrors(t *testing.T) {
	t.Parallel()
	w := &agenttest.FakeWorkloads{
		Running: []task.Workload{{Name: "a", Kind: "docker"}, {Name: "b", Kind: "docker"}},
		OnList: func(n int) error {
			if n == 1 || n == 3 {
				return errors.New("daemon busy")
			}
			return nil
		},
		OnStop: func(name string) error {
			if name == "b" {
				return errors.New("device busy")
			}
			return nil
		},
	}
	var memo bytes.Buffer
	out, err := Drain{w, time.Now}.Run(t.Context(), drainTask(&memo, task.DrainParams{Deadline: time.Now().Add(time.Second)}))
	require.NoError(t, err)
	r, ok := out.(task.DrainResult)
	require.True(t, ok)
	require.Equal(t, []string{"a"}, w.Asked)
	require.Len(t, r.Blocked, 2)
	require.Contains(t, r.Blocked[0].Reason, "was asked to stop")
	require.Contains(t, r.Blocked[1].Reason, "device busy")
	require.JSONEq(t, `["a","b"]`, memo.String())
}

// TestDrainRecordsTargetsBeforeStop: if the drain cannot record its targets,
// it stops no workload.
func TestDrainRecordsTargetsBeforeStop(t *testing.T) {
	t.Parallel()
	w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "a"}}, OnStop: func(string) error { return nil }}
	task := drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(200 * time.Millisecond)})
	tries := 0
	task.Remember = func(any) error { tries++; return syscall.ENOSPC }
	_, err := Drain{w, time.Now}.Run(t.Context(), task)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Greater(t, tries, 1)
	require.Empty(t, w.Asked)
}

func TestDrainLimit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := task.Payload{Params: task.DrainParams{Deadline: now.Add(time.Hour)}.Encode()}
	require.Equal(t, time.Hour+drainGrace, DrainLimit(p, now).Round(time.Second))
	p.Params = task.DrainParams{Deadline: now.Add(-time.Hour)}.Encode()
	require.Equal(t, drainGrace, DrainLimit(p, now))
}
