package workload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func fakeKind(kind string, names ...string) *agenttest.FakeWorkloads {
	w := &agenttest.FakeWorkloads{OnStop: func(string) error { return nil }}
	for _, name := range names {
		w.Running = append(w.Running, task.Workload{Name: name, Kind: kind})
	}
	return w
}

// TestSeveral: workloads of two drivers have different names, even if each driver has one of
// the same name, and each is stopped and killed by its own driver.
func TestSeveral(t *testing.T) {
	t.Parallel()
	docker, systemd := fakeKind("docker", "train.service", "web"), fakeKind("systemd", "train.service")
	d := NewSeveral([]Named{{"docker", docker}, {"systemd", systemd}})
	require.Equal(t, []task.Workload{
		{Name: "docker/train.service", Kind: "docker"}, {Name: "docker/web", Kind: "docker"}, {Name: "systemd/train.service", Kind: "systemd"},
	}, listed(t, d))
	require.NoError(t, d.Stop(t.Context(), "systemd/train.service"))
	require.Equal(t, []string{"train.service"}, systemd.Asked)
	require.Empty(t, docker.Asked)
	require.ErrorContains(t, d.Kill(t.Context(), "docker/web"), "workload driver docker: no permission")
	require.Equal(t, []string{"web"}, docker.Killed)
	for _, name := range []string{"web", "podman/web", "", "/web"} {
		require.Error(t, d.Stop(t.Context(), name))
		require.Error(t, d.Kill(t.Context(), name))
	}
	require.Empty(t, docker.Asked)
}

// TestSeveralOneFails: if one driver cannot list, a drain is blocked with the driver's name and
// stops nothing. A forced drain stops the workloads of the others.
func TestSeveralOneFails(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			docker, systemd := fakeKind("docker"), fakeKind("systemd", "train.service")
			docker.OnList = func(int) error { return errors.New("cannot reach the Docker daemon") }
			d := NewMonitor(NewSeveral([]Named{{"docker", docker}, {"systemd", systemd}}), time.Now, func() {}, slog.New(slog.DiscardHandler))
			list, err := d.List(t.Context())
			require.EqualError(t, err, "workload driver docker: cannot reach the Docker daemon")
			require.Equal(t, []task.Workload{{Name: "systemd/train.service", Kind: "systemd"}}, list)
			out, err := Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Second), Force: force}))
			require.NoError(t, err)
			r, ok := out.(task.DrainResult)
			require.True(t, ok)
			unknown := task.Blocker{Workload: "unknown workloads: workload driver docker: cannot reach the Docker daemon", Kind: task.KindUnknown, Reason: "what runs on the node is unknown"}
			if !force {
				require.Empty(t, systemd.Asked)
				require.Equal(t, []task.Blocker{unknown}, r.Blocked)
				return
			}
			require.Equal(t, []string{"train.service"}, systemd.Asked)
			require.Equal(t, []string{"train.service"}, systemd.Killed)
			require.Equal(t, []task.Blocker{unknown}, r.Ignored)
			require.Len(t, r.Blocked, 1, "it could not be killed")
			require.Equal(t, "systemd/train.service", r.Blocked[0].Workload)
		})
	}
}

// TestSeveralBlockers: a blocker has the kind of its driver.
func TestSeveralBlockers(t *testing.T) {
	t.Parallel()
	d := NewSeveral([]Named{{"docker", fakeKind("docker", "web")}, {"systemd", fakeKind("systemd", "train.service")}})
	out, err := Drain{Workloads: d, Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now()}))
	require.NoError(t, err)
	r, ok := out.(task.DrainResult)
	require.True(t, ok)
	require.Len(t, r.Blocked, 2)
	require.Equal(t, []string{"docker/web", "docker", "systemd/train.service", "systemd"},
		[]string{r.Blocked[0].Workload, r.Blocked[0].Kind, r.Blocked[1].Workload, r.Blocked[1].Kind})
}

// restorer is a Restorer that notes its calls.
type restorer struct {
	*agenttest.FakeWorkloads
	fault    error
	finished int
	restored [][]string
}

func (r *restorer) Finish(context.Context) error {
	r.finished++
	return r.fault
}

func (r *restorer) Restore(_ context.Context, names ...string) error {
	r.restored = append(r.restored, names)
	return r.fault
}

// TestSeveralRestores: each driver restores its own workloads, also if another one fails.
func TestSeveralRestores(t *testing.T) {
	t.Parallel()
	first := &restorer{FakeWorkloads: fakeKind("docker"), fault: errors.New("away")}
	second := &restorer{FakeWorkloads: fakeKind("podman")}
	made := NewSeveral([]Named{{"docker", first}, {"systemd", fakeKind("systemd")}, {"podman", second}})
	d, ok := made.(Restorer)
	require.True(t, ok)
	require.EqualError(t, d.Restore(t.Context()), "workload driver docker: away")
	require.NoError(t, d.Restore(t.Context(), "podman/a", "systemd/b"))
	require.Equal(t, [][]string{nil}, first.restored)
	require.Equal(t, [][]string{nil, {"a"}}, second.restored)

	require.EqualError(t, d.Finish(t.Context()), "workload driver docker: away")
	first.fault = nil
	require.NoError(t, d.Finish(t.Context()))
	require.Equal(t, []int{2, 1}, []int{first.finished, second.finished})
}
