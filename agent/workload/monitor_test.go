package workload

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// hungDriver lists workloads. Its other calls ignore their context until released.
type hungDriver struct {
	Unmanaged
	release chan struct{}
}

func (d hungDriver) Stop(ctx context.Context, name string) error { return d.Kill(ctx, name) }

func (d hungDriver) Kill(context.Context, string) error {
	<-d.release
	return nil
}

func (d hungDriver) Run(context.Context) { <-d.release }

// TestLateCalls: a call that the driver does not end returns soon after its context, and
// further calls fail until it ends.
func TestLateCalls(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *Monitor) error{
		"stop": func(ctx context.Context, m *Monitor) error { return m.Stop(ctx, "a") },
		"kill": func(ctx context.Context, m *Monitor) error { return m.Kill(ctx, "a") },
		"run": func(ctx context.Context, m *Monitor) error {
			m.Run(ctx)
			_, err := m.List(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := hungDriver{release: make(chan struct{})}
				m := NewMonitor(d, time.Now, func() {}, slog.New(slog.DiscardHandler))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.ErrorContains(t, call(ctx, m), "no answer from the workload driver since")
				require.ErrorContains(t, m.Stop(t.Context(), "b"), "no answer")
				_, err := m.List(t.Context())
				require.ErrorContains(t, err, "no answer")
				close(d.release)
				synctest.Wait()
				_, err = m.List(t.Context())
				require.NoError(t, err)
			})
		})
	}
}

// TestReportable: the server accepts the workloads of a node whatever their names are.
func TestReportable(t *testing.T) {
	t.Parallel()
	reported := []task.Workload{{Name: "a\x1b[2J" + strings.Repeat("x", wire.MaxWorkloadName), Kind: inventory.DriverDocker,
		Warning: "a\n" + strings.Repeat("x", wire.MaxWorkloadWarning)}}
	for range wire.MaxWorkloads {
		reported = append(reported, task.Workload{Name: "b\n", Kind: inventory.DriverDocker})
	}
	got := Reportable(reported)
	require.Len(t, got, wire.MaxWorkloads)
	require.NoError(t, wire.CheckWorkloads(got))
	require.Equal(t, "b\n", reported[1].Name, "the caller keeps the names")
}

// TestCallAfterContext: a call whose context has ended does not reach the driver.
func TestCallAfterContext(t *testing.T) {
	t.Parallel()
	w := &agenttest.FakeWorkloads{OnStop: func(string) error { return nil }}
	m := NewMonitor(w, time.Now, func() {}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.Stop(ctx, "a"), context.Canceled)
	require.ErrorIs(t, m.Kill(ctx, "a"), context.Canceled)
	_, err := m.List(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, w.Asked)
	require.Empty(t, w.Killed)
	require.Zero(t, w.Lists)
}

// TestCordonWithoutDriver: the node is cordoned although the driver fails. The result has
// the last known workloads, and shows that they are not current.
func TestCordonWithoutDriver(t *testing.T) {
	t.Parallel()
	s := disk.At(t.TempDir())
	flag, err := LoadCordon(s, func() {})
	require.NoError(t, err)
	fails := false
	w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "train", Kind: inventory.DriverDocker}}, OnList: func(int) error {
		if fails {
			return errors.New("daemon busy")
		}
		return nil
	}}
	m := NewMonitor(w, time.Now, func() {}, slog.New(slog.DiscardHandler))
	require.Eventually(t, func() bool { return len(m.Summary(t.Context()).Workloads) == 1 }, time.Minute, time.Millisecond)
	w.Mu.Lock()
	fails = true
	w.Mu.Unlock()
	out, err := Cordon{Flag: flag, Workloads: m}.Set(true)(t.Context(), execution.Task{
		Recall: func(any) (bool, error) { return false, nil }, Remember: func(any) error { return nil },
	})
	require.NoError(t, err)
	r, ok := out.(task.CordonResult)
	require.True(t, ok)
	require.True(t, r.Cordoned)
	require.True(t, flag.Cordoned())
	require.Len(t, r.Workloads, 2)
	require.Contains(t, r.Workloads[0].Name, "unknown workloads since")
	require.Contains(t, r.Workloads[0].Name, "daemon busy")
	require.Equal(t, "train", r.Workloads[1].Name)
}
