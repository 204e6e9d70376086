package host_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health/host"
)

// TestRestartsOfService: three restarts are normal, and a fourth is not.
func TestRestartsOfService(t *testing.T) {
	t.Parallel()
	for restarts, reason := range map[uint64]string{3: host.ReasonServicesRun, 4: host.ReasonServiceRestarts} {
		s := healthy()
		s.Services[0].Restarts.Increase = restarts
		require.Equal(t, reason, check(t, "host_services", s)[0].Reason, restarts)
	}
}

// TestEventOfReset: what the kernel logged at the time of a reset has ended with it.
func TestEventOfReset(t *testing.T) {
	t.Parallel()
	s := healthy()
	e := event(t, s, time.Minute, "NVRM: Xid (PCI:0000:3b:00): 62, pid=1, 0000(0000) 00000000 00000000")
	s.Events = []host.Event{e}
	for reset, reason := range map[time.Time]string{e.At: host.ReasonNoXID, e.At.Add(-time.Nanosecond): host.ReasonFirmwareFault} {
		s.GPUs[0].ResetAt = reset
		require.Equal(t, reason, check(t, "gpu_xid", s)[0].Reason)
	}
}

// TestLaterXID: of two events of a GPU that need the same repair, the later one names the fault.
func TestLaterXID(t *testing.T) {
	t.Parallel()
	s := healthy()
	s.GPUs[0].RecoveryAction = ""
	for i, code := range []string{"62", "109"} {
		s.Events = append(s.Events, event(t, s, time.Duration(2-i)*time.Minute, "NVRM: Xid (PCI:0000:3b:00): "+code+", pid=1"))
	}
	got := check(t, "gpu_xid", s)
	require.Len(t, got, 1)
	require.Equal(t, 109, got[0].Code)
}

// TestHistoryAfterTwoWindows: nothing of a window counts from the end of the next one on.
func TestHistoryAfterTwoWindows(t *testing.T) {
	t.Parallel()
	var h host.History
	fill := func(after time.Duration, total uint64) uint64 {
		s := host.Sample{At: start().Add(after), Disks: []host.Disk{{Name: "sda", Errors: &host.Counter{Total: total}}}}
		h.Fill(&s)
		return s.Disks[0].Errors.Increase
	}
	fill(0, 0)
	require.EqualValues(t, 5, fill(time.Minute, 5))
	require.EqualValues(t, 5, fill(2*host.Window-time.Nanosecond, 5))
	h = host.History{}
	fill(0, 0)
	fill(time.Minute, 5)
	require.Zero(t, fill(2*host.Window, 5))
}
