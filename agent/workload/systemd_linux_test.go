package workload

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

// systemdOn makes a driver of the default slice.
func systemdOn(b bus) *systemdDriver {
	return &systemdDriver{watcher{func() {}, slog.New(slog.DiscardHandler)}, b, DefaultSlice}
}

func TestSystemdDriver(t *testing.T) {
	t.Parallel()
	const since = 1714730400_000_000
	f := newFakeSystemd(t,
		&fakeUnit{name: "train.service", slice: "gpuaas-workloads.slice", state: "active", since: since},
		&fakeUnit{name: "old.service", slice: "gpuaas-workloads-a.slice", state: "deactivating", since: since},
		&fakeUnit{name: "sshd.service", slice: "system.slice", state: "active"},
		&fakeUnit{name: "done.service", slice: "gpuaas-workloads.slice", state: "inactive"},
		&fakeUnit{name: "run-1.scope", slice: "gpuaas-workloads.slice", state: "activating"},
		&fakeUnit{name: "similar.service", slice: "gpuaas-workloadsx.slice", state: "active"},
	)
	d := systemdOn(f.bus())
	at := time.UnixMicro(since).UTC()
	require.Equal(t, []task.Workload{
		{Name: "old.service", Kind: "systemd", Since: at, Stopping: true},
		{Name: "run-1.scope", Kind: "systemd"},
		{Name: "train.service", Kind: "systemd", Since: at},
	}, listed(t, d))
	require.NoError(t, d.Stop(t.Context(), "train.service"))
	require.NoError(t, d.Kill(t.Context(), "old.service"))
	require.Equal(t, []string{"stop replace train.service", "stop replace old.service", "kill all killed old.service"}, f.seen())
	require.NoError(t, d.Stop(t.Context(), "absent.service"))
	require.NoError(t, d.Kill(t.Context(), "absent.service"))
	require.Equal(t, []string{"run-1.scope"}, names(listed(t, d)))
}

// TestSystemdVanishes: a unit that systemd drops during the list is not part of it.
func TestSystemdVanishes(t *testing.T) {
	t.Parallel()
	f := newFakeSystemd(t,
		&fakeUnit{name: "a.service", slice: DefaultSlice, state: "active"},
		&fakeUnit{name: "b.service", slice: DefaultSlice, state: "active"},
	)
	f.set(func() {
		f.onGet = func(unit string) {
			if unit == "a.service" {
				f.units = slices.DeleteFunc(f.units, func(u *fakeUnit) bool { return u.name == unit })
			}
		}
	})
	require.Equal(t, []string{"b.service"}, names(listed(t, systemdOn(f.bus()))))
}

func TestSystemdFails(t *testing.T) {
	t.Parallel()
	f := newFakeSystemd(t, &fakeUnit{name: "a.service", slice: DefaultSlice, state: "active"})
	f.set(func() { f.fails = true })
	_, err := systemdOn(f.bus()).List(t.Context())
	require.ErrorContains(t, err, "cannot list the units of systemd: refused")

	absent := systemdOn(bus{func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) {
			return godbus.Connect("unix:path="+filepath.Join(t.TempDir(), "absent"), godbus.WithContext(ctx))
		})
	}})
	list, err := absent.List(t.Context())
	require.ErrorContains(t, err, "cannot reach systemd through D-Bus")
	require.Nil(t, list)
	require.Error(t, absent.Stop(t.Context(), "a.service"))
	require.Error(t, absent.Kill(t.Context(), "a.service"))
}

// TestSystemdHostileNames: the name of a unit is only a name.
func TestSystemdHostileNames(t *testing.T) {
	t.Parallel()
	hostile := []string{"--now.service", `a\x2db; reboot.service`, "ü@1.service"}
	var units []*fakeUnit
	for _, name := range hostile {
		units = append(units, &fakeUnit{name: name, slice: DefaultSlice, state: "active"})
	}
	f := newFakeSystemd(t, units...)
	d := systemdOn(f.bus())
	require.ElementsMatch(t, hostile, names(listed(t, d)))
	for _, name := range hostile {
		require.NoError(t, d.Stop(t.Context(), name))
	}
	require.Empty(t, listed(t, d))
	require.Len(t, f.seen(), len(hostile))
}

// dockerHost is a node on which a Docker daemon is a unit of systemd.
func dockerHost(t *testing.T, containers ...*fakeContainer) (*fakeDocker, *fakeSystemd, func() *dockerDriver) {
	t.Helper()
	docker := newFakeDocker(t, containers...)
	systemd := newFakeSystemd(t,
		&fakeUnit{name: "docker.service", slice: "system.slice", state: "active"},
		&fakeUnit{name: "docker.socket", slice: "system.slice", state: "active"},
	)
	docker.intercept(func(string, string) int {
		if systemd.state("docker.service") != "active" {
			return 503
		}
		return 0
	})
	folder := t.TempDir()
	return docker, systemd, func() *dockerDriver {
		d := dockerAt(t, docker.socket, folder)
		d.daemon.enabled, d.daemon.units = true, systemd.bus()
		return d
	}
}

// TestDockerDaemonStops: a drain stops the daemon after the containers, if the configuration
// asks for that; the node's list is empty then, and an uncordon starts the daemon before it
// restores the policies.
func TestDockerDaemonStops(t *testing.T) {
	t.Parallel()
	docker, systemd, driver := dockerHost(t, &fakeContainer{id: "a1", name: "a", policy: always()})
	drain := func() {
		out, err := Drain{Workloads: driver(), Now: time.Now}.Run(t.Context(), drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Minute)}))
		require.NoError(t, err)
		require.Equal(t, task.DrainResult{Stopped: []string{"a"}}, out)
	}
	drain()
	require.Equal(t, []string{"stop replace docker.socket", "stop replace docker.service"}, systemd.seen())
	require.Empty(t, listed(t, driver()))
	require.NoError(t, driver().Finish(t.Context()), "it may run again")
	require.Len(t, systemd.seen(), 2)

	require.NoError(t, driver().Restore(t.Context()))
	require.Equal(t, []string{"start replace docker.socket", "start replace docker.service"}, systemd.seen()[2:])
	require.Equal(t, always(), docker.get("a").policy)
	require.NoError(t, driver().Restore(t.Context()))
	require.Len(t, systemd.seen(), 4, "the record is cleared")
}

// TestDockerDaemonStays: the daemon is not stopped while a container runs, and a daemon that
// the driver did not stop is a fault.
func TestDockerDaemonStays(t *testing.T) {
	t.Parallel()
	_, systemd, driver := dockerHost(t, &fakeContainer{id: "a1", name: "a"})
	require.ErrorContains(t, driver().Finish(t.Context()), "container a runs")
	require.Empty(t, systemd.seen())
	_, fault := systemd.StopUnit("docker.service", "replace")
	require.Nil(t, fault)
	_, err := driver().List(t.Context())
	require.ErrorContains(t, err, "503")
}

// TestDockerDaemonIsDefaultOff: without the setting, a drain does not stop the daemon.
func TestDockerDaemonIsDefaultOff(t *testing.T) {
	t.Parallel()
	_, systemd, driver := dockerHost(t)
	d := driver()
	d.daemon.enabled = false
	require.NoError(t, d.Finish(t.Context()))
	require.Empty(t, systemd.seen())
}
