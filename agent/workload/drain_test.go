package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
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
		Confirm:  func(context.Context, time.Duration) error { return nil },
	}
}

func TestDrainRetriesDriverErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		out, err := Drain{Workloads: w, Now: time.Now}.Run(t.Context(), drainTask(&memo, task.DrainParams{Deadline: time.Now().Add(time.Second)}))
		require.NoError(t, err)
		r, ok := out.(task.DrainResult)
		require.True(t, ok)
		require.Equal(t, []string{"a"}, w.Asked)
		require.Len(t, r.Blocked, 2)
		require.Contains(t, r.Blocked[0].Reason, "was asked to stop")
		require.Contains(t, r.Blocked[1].Reason, "device busy")
		require.JSONEq(t, `["a","b"]`, memo.String())
	})
}

// TestDrainOfUnknownWorkloads: a driver that cannot list the workloads at the deadline blocks a
// drain unless it is forced. No workload is reported as stopped, and the driver ends nothing else.
func TestDrainOfUnknownWorkloads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ force, lost bool }{
		"never listed": {false, false}, "forced": {true, false}, "lost": {false, true}, "lost while it is forced": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				until := time.Now().Add(time.Second)
				w := &finishing{FakeWorkloads: agenttest.FakeWorkloads{
					Running: []task.Workload{{Name: "a", Kind: "docker"}}, OnStop: func(string) error { return nil },
					OnList: func(int) error {
						if c.lost && time.Now().Before(until) {
							return nil
						}
						return errors.New("connection refused")
					},
				}}
				out, err := Drain{Workloads: w, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: until, Force: c.force}))
				require.NoError(t, err)
				unknown := []task.Blocker{{Workload: "unknown workloads: connection refused", Kind: task.KindUnknown, Reason: "what runs on the node is unknown"}}
				want := task.DrainResult{Stopped: []string{}, Blocked: unknown}
				if c.force {
					want = task.DrainResult{Stopped: []string{}, Ignored: unknown}
				}
				require.Equal(t, want, out)
				require.False(t, w.finished)
			})
		})
	}
}

// finishing has a driver that ends something after the workloads.
type finishing struct {
	agenttest.FakeWorkloads
	finished, restored bool
	then               func() // after it ended that
}

func (f *finishing) Finish(context.Context) error {
	f.finished = true
	if f.then != nil {
		f.then()
	}
	return nil
}

func (f *finishing) Restore(_ context.Context, names ...string) error {
	f.restored = len(names) == 0
	return nil
}

// TestDrainRecordsTargetsBeforeStop: if the drain cannot record its targets,
// it stops no workload.
func TestDrainRecordsTargetsBeforeStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "a"}}, OnStop: func(string) error { return nil }}
		task := drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(200 * time.Millisecond)})
		tries := 0
		task.Remember = func(any) error { tries++; return syscall.ENOSPC }
		_, err := Drain{Workloads: w, Now: time.Now}.Run(t.Context(), task)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.Greater(t, tries, 1)
		require.Empty(t, w.Asked)
	})
}

// TestDrainConfirmsEffects: the drain changes no workload unless the server confirms that:
// each kill, and a stop if the last confirmed lease may have ended. The agent may have been
// suspended since the last look at the operation.
func TestDrainConfirmsEffects(t *testing.T) {
	t.Parallel()
	canceled := errors.New("canceled")
	for name, c := range map[string]struct {
		refused time.Duration // the confirmation that fails
		after   int           // as many of them succeed first
		pauses  bool          // instead of failing
		stopped []string
		killed  []string
	}{
		"canceled before the stop":       {task.LeaseDuration, 0, false, nil, nil},
		"canceled before the next stop":  {task.LeaseDuration, 1, false, []string{"a"}, nil},
		"paused before the next stop":    {task.LeaseDuration, 1, true, []string{"a"}, nil},
		"canceled between stop and kill": {0, 0, false, []string{"a", "b"}, nil},
		"canceled between the kills":     {0, 1, false, []string{"a", "b"}, []string{"a"}},
		"paused between stop and kill":   {0, 0, true, []string{"a", "b"}, nil},
		"not canceled":                   {0, 2, false, []string{"a", "b"}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &agenttest.FakeWorkloads{
					Running: []task.Workload{{Name: "a"}, {Name: "b"}}, OnStop: func(string) error { return nil },
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				paused, asked := false, 0
				x := drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Minute), Force: true})
				x.Paused = func() bool { return paused }
				x.Confirm = func(_ context.Context, recent time.Duration) error {
					if recent != c.refused {
						return nil
					}
					if asked++; asked <= c.after {
						return nil
					}
					if c.pauses {
						paused = true
						return nil
					}
					cancel()
					return canceled
				}
				_, err := Drain{Workloads: w, Now: time.Now}.Run(ctx, x)
				require.Equal(t, ctx.Err() == nil, err == nil)
				require.Equal(t, c.stopped, w.Asked)
				require.Equal(t, c.killed, w.Killed)
			})
		})
	}
}

func TestDrainLimit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := task.Payload{Params: task.DrainParams{Deadline: now.Add(time.Hour)}.Encode()}
	require.Equal(t, time.Hour+drainGrace, DrainLimit(p, now).Round(time.Second))
	p.Params = task.DrainParams{Deadline: now.Add(-time.Hour)}.Encode()
	require.Equal(t, drainGrace, DrainLimit(p, now))
}

// TestDrainOfASlowDriver: a drain asks no further workload to stop once its deadline has passed,
// so that it can report what is left.
func TestDrainOfASlowDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &agenttest.FakeWorkloads{OnStop: func(string) error { return wait.Sleep(t.Context(), time.Second) }}
		for _, name := range []string{"a", "b", "c", "d"} {
			w.Running = append(w.Running, task.Workload{Name: name, Kind: "docker"})
		}
		out, err := Drain{Workloads: w, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(1500 * time.Millisecond)}))
		require.NoError(t, err)
		r, ok := out.(task.DrainResult)
		require.True(t, ok)
		require.Len(t, r.Blocked, 4)
		require.Equal(t, []string{"a", "b"}, w.Asked)
	})
}

// TestCanceledWhileFinishing: a drain that is canceled after it ended more than the workloads
// reverts that, also if no workload ran.
func TestCanceledWhileFinishing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	w := &finishing{then: func() { cancel(execution.ErrCanceled) }}
	_, err := Drain{Workloads: w, Now: time.Now}.Run(ctx, drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Minute)}))
	require.NoError(t, err)
	require.True(t, w.finished)
	require.True(t, w.restored)
}
