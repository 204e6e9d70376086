package simulate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/task"
)

// bench is one machine with its faults file, and the time.
type bench struct {
	t    *testing.T
	conf Config
	at   time.Time
	n    int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	dir := t.TempDir()
	b.conf = Config{Host: "fleet-0007", Faults: filepath.Join(dir, "faults.json"), State: filepath.Join(dir, "simulated.json"),
		Now: func() time.Time { return b.at }}
	return b
}

// inject replaces the faults file.
func (b *bench) inject(f ...Fault) {
	b.t.Helper()
	raw, err := json.Marshal(Faults{RebootSeconds: 5, Faults: f})
	require.NoError(b.t, err)
	b.n++
	require.NoError(b.t, os.WriteFile(b.conf.Faults+".tmp", raw, 0o600))
	require.NoError(b.t, os.Chtimes(b.conf.Faults+".tmp", b.at, b.at.Add(time.Duration(b.n)*time.Second)))
	require.NoError(b.t, os.Rename(b.conf.Faults+".tmp", b.conf.Faults))
}

func xid(repair health.Repair, component string) health.Condition {
	return health.Condition{Checker: "gpu_xid", Component: component, Reason: "Xid", Code: 79, Repair: repair}
}

// statuses are the statuses of the machine's conditions, by checker and component.
func statuses(m *Machine) map[string]health.Status {
	got := map[string]health.Status{}
	for _, c := range m.Report().Conditions {
		got[c.Checker+" "+c.Component] = c.Status
	}
	return got
}

func TestFaultOfTheHost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := New(b.conf)
	require.Equal(t, map[string]health.Status{"host_disk ": health.Healthy}, statuses(m))
	b.inject(Fault{Hosts: []string{"other", "fleet-000*"}, Condition: xid(health.RepairReboot, "GPU-1")},
		Fault{Hosts: []string{"fleet-0001"}, Condition: xid(health.RepairReboot, "GPU-2")})
	require.True(t, m.Check())
	begin := b.at
	b.at = b.at.Add(time.Minute)
	require.False(t, m.Check(), "nothing changed")
	c := m.Report().Conditions[0]
	require.Equal(t, health.Condition{Checker: "gpu_xid", Component: "GPU-1", Status: health.Unhealthy, Reason: "Xid", Code: 79,
		Repair: health.RepairReboot, Since: begin, Samples: 2}, c)
	require.Len(t, m.Report().Conditions, 2)
}

// TestRepairsOfAMachine: a reset cures what a reset cures, a reboot everything but sticky faults,
// and a cured fault stays cured in the next process until it leaves the file.
func TestRepairsOfAMachine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := New(b.conf)
	reset, boot := Fault{Condition: xid(health.RepairResetGPU, "GPU-1")}, Fault{Condition: xid(health.RepairReboot, "GPU-2")}
	sticky := Fault{Condition: xid(health.RepairReboot, "GPU-3"), Sticky: true}
	b.inject(reset, boot, sticky)
	require.Equal(t, 3, len(m.Verify().Tests))
	_, err := m.Reset(task.ResetParams{GPUs: []string{"GPU-2"}})
	require.NoError(t, err)
	require.Equal(t, 3, len(m.Verify().Tests), "another GPU")
	_, err = m.Reset(task.ResetParams{})
	require.NoError(t, err)
	require.Equal(t, 2, len(m.Verify().Tests))

	before := m.BootID()
	off, err := m.Reboot()
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, off)
	require.NotEqual(t, before, m.BootID())
	m = New(b.conf)
	require.NotEqual(t, before, m.BootID())
	v := m.Verify()
	require.False(t, v.OK)
	require.Len(t, v.Tests, 1)
	require.Equal(t, health.Unhealthy, statuses(m)["gpu_xid GPU-3"])
	require.NotContains(t, statuses(m), "gpu_xid GPU-2", "a check that this process never made")

	b.inject()
	require.True(t, m.Verify().OK)
	require.Equal(t, health.Healthy, statuses(m)["gpu_xid GPU-3"], "a fault that ended is reported as healthy")
	b.inject(boot)
	require.False(t, m.Verify().OK, "the fault returned")
}

// TestDamagedFaultsFile: the machine keeps its last faults and says why.
func TestDamagedFaultsFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := New(b.conf)
	b.inject(Fault{Condition: xid(health.RepairReboot, "GPU-1")})
	m.Check()
	require.NoError(t, os.WriteFile(b.conf.Faults, []byte(`{"faults": [`), 0o600))
	m.Check()
	require.ErrorContains(t, m.Fault(), b.conf.Faults)
	require.Equal(t, health.Unhealthy, statuses(m)["gpu_xid GPU-1"])
	require.NoError(t, os.Remove(b.conf.Faults))
	m.Check()
	require.NoError(t, m.Fault())
	require.Equal(t, health.Healthy, statuses(m)["gpu_xid GPU-1"])
}
