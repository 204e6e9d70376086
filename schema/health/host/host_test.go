package host_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

func start() time.Time { return time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC) }

// healthy is the sample of a host with two A100 and everything that the checkers look at. Its counters
// have large lifetime values.
func healthy() host.Sample {
	s := host.Sample{
		At: start(), BootID: "b1", BootedAt: start().Add(-time.Hour), ExpectedGPUs: 2, Driver: "550.90.07", Missing: map[host.Input]string{},
		Disks:    []host.Disk{{Name: "/", TotalBytes: 100 << 30, FreeBytes: 50 << 30, Errors: &host.Counter{Total: 1000}}},
		Clock:    &host.Clock{Synchronized: true, Offset: -3 * time.Millisecond},
		Memory:   &host.Memory{TotalBytes: 1000 << 30, AvailableBytes: 800 << 30, ExpectedBytes: 1024 << 30},
		Services: []host.Service{{Name: "nvidia-persistenced", Active: true, Restarts: &host.Counter{Total: 90}}},
		Ports:    []host.Port{{Name: "mlx5_0/1", State: "ACTIVE", WasActive: true, LinkDowned: &host.Counter{Total: 7}, SymbolErrors: &host.Counter{Total: 65535}}, {Name: "mlx5_1/1", State: "DOWN"}},
	}
	for i, bus := range []string{"00000000:3B:00.0", "00000000:5E:00.0"} {
		s.GPUs = append(s.GPUs, host.GPU{
			Index: i, UUID: "GPU-" + string(rune('a'+i)), Model: "NVIDIA A100-SXM4-80GB", PCI: bus, RecoveryAction: device.ActionNone,
			ECCVolatile: &host.Counter{}, ECCAggregate: &host.Counter{Total: 12}, SRAMThreshold: new(false),
			RemapPending: new(false), RemapFailure: new(false), RemapCorrectable: &host.Counter{Total: 3}, RemapUncorrectable: &host.Counter{Total: 2},
			Links: []host.Link{{ID: 0, Up: true, Errors: &host.Counter{Total: 1 << 40}}, {ID: 1, Up: true, Errors: &host.Counter{}}}, ExpectedLinks: 2,
			TemperatureC: new(45), SlowdownC: new(89), FanPercent: new(30),
		})
	}
	return s
}

// check runs the checker with a name.
func check(t *testing.T, name string, s host.Sample) []health.Result {
	t.Helper()
	checkers, err := host.Checkers()
	require.NoError(t, err)
	i := slices.IndexFunc(checkers, func(c health.Checker[host.Sample]) bool { return c.Name() == name })
	require.GreaterOrEqual(t, i, 0, name)
	require.True(t, checkers[i].Applies(s), name)
	return checkers[i].Check(s)
}

// event is a kernel event of this boot, by its line.
func event(t *testing.T, s host.Sample, age time.Duration, line string) host.Event {
	t.Helper()
	e, ok := device.NewParser().Parse(line)
	require.True(t, ok, line)
	return host.Event{Event: e, At: s.At.Add(-age), BootID: s.BootID}
}

func TestHealthyHost(t *testing.T) {
	t.Parallel()
	checkers, err := host.Checkers()
	require.NoError(t, err)
	s := healthy()
	var h host.History
	h.Fill(&s)
	r := health.NewTracker(health.Report{}).Observe(s.At, s.BootID, health.Run(checkers, s))
	require.NoError(t, r.Validate())
	require.Len(t, r.Conditions, len(checkers), "one condition for each checker")
	for _, c := range r.Conditions {
		require.Equal(t, health.Healthy, c.Status, c.Checker)
	}
}

func TestHostWithoutGPUs(t *testing.T) {
	t.Parallel()
	checkers, err := host.Checkers()
	require.NoError(t, err)
	s := healthy()
	s.GPUs, s.ExpectedGPUs = nil, 0
	for _, c := range checkers {
		require.Equal(t, c.Name()[:4] == "host", c.Applies(s), c.Name())
	}
	require.Len(t, health.Run(checkers, host.Sample{At: start()}), 1, "an empty sample has only the kernel's events")
}

// A source that hangs makes its checks unknown, and no others.
func TestMissingInputIsUnknown(t *testing.T) {
	t.Parallel()
	checkers, err := host.Checkers()
	require.NoError(t, err)
	for input, want := range map[host.Input][]string{
		host.InputGPUs:       {"gpu_count", "gpu_recovery_action", "gpu_ecc", "gpu_row_remap", "gpu_nvlink", "gpu_thermal", "gpu_fan"},
		host.InputKernel:     {"gpu_xid", "gpu_sxid", "host_kernel"},
		host.InputDisks:      {"host_disk"},
		host.InputClock:      {"host_clock"},
		host.InputMemory:     {"host_memory"},
		host.InputServices:   {"host_services"},
		host.InputInfiniBand: {"host_infiniband"},
	} {
		s := healthy()
		s.Missing[input] = "nvidia-smi did not end within 20s"
		var unknown []string
		for _, f := range health.Run(checkers, s) {
			if f.Results[0].Status == health.Unknown {
				require.Equal(t, host.ReasonNotRead, f.Results[0].Reason)
				require.Len(t, f.Results, 1)
				unknown = append(unknown, f.Checker)
			}
		}
		require.ElementsMatch(t, want, unknown, input)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	first := func(change func(*host.GPU)) func(*host.Sample) { return func(s *host.Sample) { change(&s.GPUs[0]) } }
	for name, c := range map[string]struct {
		checker   string
		change    func(*host.Sample)
		component string
		reason    string
		repair    health.Repair
	}{
		"a GPU is missing":       {"gpu_count", func(s *host.Sample) { s.GPUs = s.GPUs[:1] }, "", host.ReasonCountMismatch, health.RepairReboot},
		"no GPU":                 {"gpu_count", func(s *host.Sample) { s.GPUs = nil }, "", host.ReasonNoGPU, health.RepairReboot},
		"a GPU is lost":          {"gpu_count", first(func(g *host.GPU) { g.Lost = true }), "GPU-a", host.ReasonGPULost, health.RepairReboot},
		"reset required":         {"gpu_recovery_action", first(func(g *host.GPU) { g.RecoveryAction = device.ActionReset }), "GPU-a", host.ReasonResetRequired, health.RepairResetGPU},
		"drain and reset":        {"gpu_recovery_action", first(func(g *host.GPU) { g.RecoveryAction = device.ActionDrainReset }), "GPU-a", host.ReasonResetRequired, health.RepairResetGPU},
		"reboot required":        {"gpu_recovery_action", first(func(g *host.GPU) { g.RecoveryAction = device.ActionReboot }), "GPU-a", host.ReasonRebootRequired, health.RepairReboot},
		"action not known":       {"gpu_recovery_action", first(func(g *host.GPU) { g.RecoveryAction = device.ActionOther }), "GPU-a", host.ReasonOtherAction, health.RepairObserve},
		"new ECC errors":         {"gpu_ecc", first(func(g *host.GPU) { g.ECCVolatile.Increase = 1 }), "GPU-a", host.ReasonECCErrors, health.RepairObserve},
		"SRAM threshold":         {"gpu_ecc", first(func(g *host.GPU) { g.SRAMThreshold = new(true) }), "GPU-a", host.ReasonSRAMThreshold, health.RepairRMA},
		"remap failed":           {"gpu_row_remap", first(func(g *host.GPU) { g.RemapFailure, g.RemapPending = new(true), new(true) }), "GPU-a", host.ReasonRemapFailed, health.RepairRMA},
		"remap pending":          {"gpu_row_remap", first(func(g *host.GPU) { g.RemapPending = new(true) }), "GPU-a", host.ReasonRemapPending, health.RepairObserve},
		"page retirement":        {"gpu_row_remap", first(func(g *host.GPU) { g.RetiredPending = new(true) }), "GPU-a", host.ReasonRetirementPending, health.RepairResetGPU},
		"rows were remapped":     {"gpu_row_remap", first(func(g *host.GPU) { g.RemapUncorrectable.Increase = 1 }), "GPU-a", host.ReasonRowsRemapped, health.RepairObserve},
		"a link is down":         {"gpu_nvlink", first(func(g *host.GPU) { g.Links[1].Up = false }), "GPU-a", host.ReasonLinkDown, health.RepairResetGPU},
		"links are missing":      {"gpu_nvlink", first(func(g *host.GPU) { g.Links = nil }), "GPU-a", host.ReasonLinkDown, health.RepairResetGPU},
		"link errors":            {"gpu_nvlink", first(func(g *host.GPU) { g.Links[0].Errors.Increase = 101 }), "GPU-a", host.ReasonLinkErrors, health.RepairObserve},
		"thermal slowdown":       {"gpu_thermal", first(func(g *host.GPU) { g.Throttle = []string{"sw_power_cap", "hw_thermal_slowdown"} }), "GPU-a", host.ReasonThermalSlowdown, health.RepairObserve},
		"power brake":            {"gpu_thermal", first(func(g *host.GPU) { g.Throttle = []string{"hw_power_brake_slowdown"} }), "GPU-a", host.ReasonPowerBrake, health.RepairObserve},
		"too hot":                {"gpu_thermal", first(func(g *host.GPU) { g.TemperatureC = new(89) }), "GPU-a", host.ReasonHot, health.RepairObserve},
		"fan error":              {"gpu_fan", first(func(g *host.GPU) { g.FanFailed = true }), "GPU-a", host.ReasonFanFailed, health.RepairObserve},
		"fan is off":             {"gpu_fan", first(func(g *host.GPU) { g.FanPercent, g.TemperatureC = new(0), new(75) }), "GPU-a", host.ReasonFanStopped, health.RepairObserve},
		"read-only file system":  {"host_disk", func(s *host.Sample) { s.Disks[0].ReadOnly = true }, "/", host.ReasonReadOnly, health.RepairReboot},
		"I/O errors":             {"host_disk", func(s *host.Sample) { s.Disks[0].Errors.Increase = 11 }, "/", host.ReasonDiskIOErrors, health.RepairReplace},
		"full file system":       {"host_disk", func(s *host.Sample) { s.Disks[0].FreeBytes = 4 << 30 }, "/", host.ReasonDiskFull, health.RepairObserve},
		"clock without a source": {"host_clock", func(s *host.Sample) { s.Clock.Synchronized = false }, "", host.ReasonClockUnsynced, health.RepairRestart},
		"clock is off":           {"host_clock", func(s *host.Sample) { s.Clock.Offset = -3 * time.Second }, "", host.ReasonClockOffset, health.RepairRestart},
		"memory is missing":      {"host_memory", func(s *host.Sample) { s.Memory.TotalBytes = 900 << 30 }, "", host.ReasonMemoryMissing, health.RepairReplace},
		"memory is used up":      {"host_memory", func(s *host.Sample) { s.Memory.AvailableBytes = 10 << 30 }, "", host.ReasonMemoryExhausted, health.RepairObserve},
		"failed service":         {"host_services", func(s *host.Sample) { s.Services[0].Failed = true }, "nvidia-persistenced", host.ReasonServiceFailed, health.RepairRestart},
		"stopped service":        {"host_services", func(s *host.Sample) { s.Services[0].Active = false }, "nvidia-persistenced", host.ReasonServiceInactive, health.RepairRestart},
		"port is missing":        {"host_infiniband", func(s *host.Sample) { s.Ports[0].Missing = true }, "mlx5_0/1", host.ReasonPortMissing, health.RepairObserve},
		"port is down":           {"host_infiniband", func(s *host.Sample) { s.Ports[0].State = "INIT" }, "mlx5_0/1", host.ReasonPortDown, health.RepairObserve},
		"link failed":            {"host_infiniband", func(s *host.Sample) { s.Ports[0].LinkDowned.Increase = 1 }, "mlx5_0/1", host.ReasonLinkDowned, health.RepairObserve},
		"symbol errors":          {"host_infiniband", func(s *host.Sample) { s.Ports[0].SymbolErrors.Increase = 121 }, "mlx5_0/1", host.ReasonSymbolErrors, health.RepairObserve},
		"service restarts":       {"host_services", func(s *host.Sample) { s.Services[0].Restarts.Increase = 4 }, "nvidia-persistenced", host.ReasonServiceRestarts, health.RepairObserve},
	} {
		s := healthy()
		c.change(&s)
		got := check(t, c.checker, s)
		require.Len(t, got, 1, name)
		require.Equal(t, health.Unhealthy, got[0].Status, name)
		require.Equal(t, c.component, got[0].Component, name)
		require.Equal(t, c.reason, got[0].Reason, name)
		require.Equal(t, c.repair, got[0].Repair, name)
		require.NotEmpty(t, got[0].Detail, name)
	}
}

func TestWhatIsNoFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		checker string
		change  func(*host.Sample)
	}{
		"more GPUs than the SKU":     {"gpu_count", func(s *host.Sample) { s.ExpectedGPUs = 1 }},
		"SKU is not known":           {"gpu_count", func(s *host.Sample) { s.ExpectedGPUs = 0 }},
		"power cap":                  {"gpu_thermal", func(s *host.Sample) { s.GPUs[0].Throttle = []string{"gpu_idle", "sw_power_cap"} }},
		"cool GPU with a fan at 0":   {"gpu_fan", func(s *host.Sample) { s.GPUs[0].FanPercent = new(0) }},
		"few link errors":            {"gpu_nvlink", func(s *host.Sample) { s.GPUs[0].Links[0].Errors.Increase = 100 }},
		"memory of an unknown SKU":   {"host_memory", func(s *host.Sample) { s.Memory.ExpectedBytes = 0 }},
		"block device without sizes": {"host_disk", func(s *host.Sample) { s.Disks = []host.Disk{{Name: "nvme0n1"}} }},
		"few symbol errors":          {"host_infiniband", func(s *host.Sample) { s.Ports[0].SymbolErrors.Increase = 120 }},
		"figures of a lost GPU":      {"gpu_ecc", func(s *host.Sample) { s.GPUs[0].Lost, s.GPUs[0].SRAMThreshold = true, new(true) }},
	} {
		s := healthy()
		c.change(&s)
		got := check(t, c.checker, s)
		require.Len(t, got, 1, name)
		require.Equal(t, health.Healthy, got[0].Status, "%s: %+v", name, got)
	}
}

func TestXIDLastsUntilResetOrReboot(t *testing.T) {
	t.Parallel()
	s := healthy()
	for i := range s.GPUs {
		s.GPUs[i].RecoveryAction = "" // a driver without the field
	}
	s.Events = []host.Event{event(t, s, 3*time.Hour, "NVRM: Xid (PCI:0000:3b:00): 95, pid=1, Uncontained: FBHUB. RST: Yes, D-RST: No")}
	got := check(t, "gpu_xid", s)
	require.Equal(t, "GPU-a", got[0].Component)
	require.Equal(t, host.ReasonMemoryFault, got[0].Reason)
	require.Equal(t, 95, got[0].Code)
	require.Equal(t, health.RepairResetGPU, got[0].Repair)

	s.GPUs[0].ResetAt = s.At.Add(-time.Hour)
	require.Equal(t, health.Healthy, check(t, "gpu_xid", s)[0].Status, "the reset ends it")
	s.Events = append(s.Events, event(t, s, time.Minute, "NVRM: Xid (PCI:0000:3b:00): 95, pid=1, Uncontained: FBHUB."))
	require.Equal(t, health.Unhealthy, check(t, "gpu_xid", s)[0].Status, "and a new event starts it again")
	s.BootID = "b2"
	require.Equal(t, health.Healthy, check(t, "gpu_xid", s)[0].Status, "a reboot ends it")
}

func TestXIDOfAnApplicationIsShownForMinutes(t *testing.T) {
	t.Parallel()
	s := healthy()
	for age, status := range map[time.Duration]health.Status{time.Minute: health.Unhealthy, 11 * time.Minute: health.Healthy} {
		for _, line := range []string{"NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python3, MMU Fault", "NVRM: Xid (PCI:0000:3b:00): 777, new"} {
			s.Events = []host.Event{event(t, s, age, line)}
			got := check(t, "gpu_xid", s)[0]
			require.Equal(t, status, got.Status, "%s %s", age, line)
			require.False(t, got.Repair.Acts())
		}
	}
}

func TestWorstXIDOfEachGPU(t *testing.T) {
	t.Parallel()
	s := healthy()
	for i := range s.GPUs {
		s.GPUs[i].RecoveryAction = ""
	}
	s.Events = []host.Event{
		event(t, s, 5*time.Minute, "NVRM: Xid (PCI:0000:5e:00): 31, MMU Fault"),
		event(t, s, 4*time.Minute, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
		event(t, s, 3*time.Minute, "NVRM: Xid (PCI:0000:3b:00): 119, Timeout"),
		event(t, s, 2*time.Minute, "NVRM: Xid (PCI:0000:3b:00): 45, Ch 1"),
		event(t, s, 2*time.Minute, "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"),
	}
	got := check(t, "gpu_xid", s)
	require.Len(t, got, 2)
	require.Equal(t, []int{79, 31}, []int{got[0].Code, got[1].Code})
	got = check(t, "gpu_sxid", s)
	require.Len(t, got, 1)
	require.Equal(t, "0000:06:00", got[0].Component)
	require.Equal(t, health.RepairResetGPU, got[0].Repair)
	require.Equal(t, host.ReasonLinkFault, got[0].Reason)
}

// The action is about this GPU, the table only about the code.
func TestRecoveryActionDecidesBeforeTheTable(t *testing.T) {
	t.Parallel()
	line := "NVRM: Xid (PCI:0000:3b:00): 119, Timeout"
	for action, want := range map[device.Action]health.Repair{
		"": health.RepairResetGPU, device.ActionNone: health.RepairObserve, device.ActionReboot: health.RepairReboot, device.ActionReset: health.RepairResetGPU,
	} {
		s := healthy()
		s.GPUs[0].RecoveryAction = action
		s.Events = []host.Event{event(t, s, time.Minute, line)}
		require.Equal(t, want, check(t, "gpu_xid", s)[0].Repair, action)
	}
	s := healthy()
	s.GPUs[0].Lost = true
	s.Events = []host.Event{event(t, s, time.Minute, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")}
	require.Equal(t, health.RepairReboot, check(t, "gpu_xid", s)[0].Repair, "the driver cannot read the action of a lost GPU")
}

// Of several XID 154, only the last one counts.
func TestRecoveryActionThatChangedBack(t *testing.T) {
	t.Parallel()
	s := healthy()
	s.GPUs = nil
	s.Events = []host.Event{event(t, s, 30*time.Minute, "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")}
	got := check(t, "gpu_xid", s)
	require.Equal(t, health.RepairReboot, got[0].Repair)
	require.Equal(t, "0000:3b:00", got[0].Component)
	s.Events = append(s.Events, event(t, s, 20*time.Minute, "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"))
	require.Equal(t, health.Healthy, check(t, "gpu_xid", s)[0].Status)
}

// The name of a GPU's component must not change while nvidia-smi hangs or when the GPU is lost:
// otherwise its fault would start again.
func TestComponentKeepsItsName(t *testing.T) {
	t.Parallel()
	s := healthy()
	s.UUIDs = map[string]string{"0000:3b:00": "GPU-a"}
	s.GPUs = s.GPUs[1:]
	s.Events = []host.Event{event(t, s, time.Minute, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")}
	require.Equal(t, "GPU-a", check(t, "gpu_xid", s)[0].Component)
	s.GPUs, s.Missing[host.InputGPUs] = nil, "hangs"
	require.Equal(t, "GPU-a", check(t, "gpu_xid", s)[0].Component)
}

func TestKernelErrors(t *testing.T) {
	t.Parallel()
	const corrected = "EDAC MC0: 1 CE memory read error on DIMM_A1 (channel:0)"
	s := healthy()
	for range 10 {
		s.Events = append(s.Events, event(t, s, time.Minute, corrected))
	}
	s.Events = append(s.Events, event(t, s, 2*time.Hour, corrected))
	require.Equal(t, health.Healthy, check(t, "host_kernel", s)[0].Status, "ten corrected errors are normal")
	s.Events = append(s.Events, event(t, s, time.Minute, corrected))
	got := check(t, "host_kernel", s)
	require.Equal(t, health.RepairObserve, got[0].Repair)
	require.Equal(t, "memory:MC0", got[0].Component)
	s.Events = append(s.Events, event(t, s, 5*time.Hour, "EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0)"), event(t, s, time.Minute, corrected))
	got = check(t, "host_kernel", s)
	require.Len(t, got, 1)
	require.Equal(t, health.RepairReplace, got[0].Repair, "corrected errors do not hide one that was not")
	for line, want := range map[string]struct {
		reason string
		repair health.Repair
	}{
		"mce: [Hardware Error]: CPU 10: Machine Check: 0 Bank 5: bea0000000000108":                    {host.ReasonCPUErrors, health.RepairReplace},
		"mlx5_core 0000:00:00.0: poll_health:694:(pid 0): Fatal error 1 detected":                     {host.ReasonNICErrors, health.RepairReboot},
		"pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": {host.ReasonPCIErrors, health.RepairReboot},
		"EXT4-fs (md0): Remounting filesystem read-only":                                              {host.ReasonDiskErrors, health.RepairReplace},
	} {
		s.Events = []host.Event{event(t, s, time.Hour, line)}
		got := check(t, "host_kernel", s)[0]
		require.Equal(t, want.reason, got.Reason, line)
		require.Equal(t, want.repair, got.Repair, line)
		s.Events[0].BootID = "b0"
		require.Equal(t, health.Healthy, check(t, "host_kernel", s)[0].Status, "of an earlier boot: %s", line)
	}
}

// A monitor that reads lifetime values would make a whole fleet unhealthy at its first start.
func TestHistoryIgnoresLifetimeValues(t *testing.T) {
	t.Parallel()
	var h host.History
	s := healthy()
	h.Fill(&s)
	require.Zero(t, s.GPUs[0].Links[0].Errors.Increase)
	s = healthy()
	s.At = s.At.Add(time.Minute)
	s.GPUs[0].Links[0].Errors.Total += 500
	s.GPUs[1].ECCAggregate.Total++
	h.Fill(&s)
	require.EqualValues(t, 500, s.GPUs[0].Links[0].Errors.Increase)
	require.Equal(t, host.ReasonLinkErrors, check(t, "gpu_nvlink", s)[0].Reason)
	require.Equal(t, "GPU-b", check(t, "gpu_ecc", s)[0].Component)
}

func TestHistoryWindows(t *testing.T) {
	t.Parallel()
	var h host.History
	fill := func(after time.Duration, total uint64) uint64 {
		s := host.Sample{At: start().Add(after), Disks: []host.Disk{{Name: "sda", Errors: &host.Counter{Total: total}}}}
		h.Fill(&s)
		text, err := json.Marshal(h)
		require.NoError(t, err)
		h = host.History{}
		require.NoError(t, json.Unmarshal(text, &h), "every step is over a restart of the agent")
		return s.Disks[0].Errors.Increase
	}
	require.Zero(t, fill(0, 70))
	require.EqualValues(t, 5, fill(time.Minute, 75))
	require.EqualValues(t, 5, fill(host.Window, 75), "the previous window counts too")
	require.EqualValues(t, 7, fill(host.Window+time.Minute, 77))
	require.EqualValues(t, 2, fill(2*host.Window, 77), "then it does not")
	require.EqualValues(t, 3, fill(2*host.Window+time.Minute, 1), "a counter that began again counts from 0")
	require.EqualValues(t, 4, fill(9*host.Window, 5), "after a long gap only what is new")
	require.Zero(t, fill(-time.Hour, 9), "a clock that went back starts again")
}

// A source that hangs once must not make the next sample look like the first.
func TestHistoryKeepsCountersOfMissingInputs(t *testing.T) {
	t.Parallel()
	var h host.History
	sample := func(total uint64, missing bool) *host.Sample {
		s := &host.Sample{At: start(), Missing: map[host.Input]string{}}
		if missing {
			s.Missing[host.InputDisks] = "hangs"
			return s
		}
		s.Disks = []host.Disk{{Name: "sda", Errors: &host.Counter{Total: total}}}
		return s
	}
	h.Fill(sample(10, false))
	h.Fill(sample(0, true))
	s := sample(12, false)
	h.Fill(s)
	require.EqualValues(t, 2, s.Disks[0].Errors.Increase)
	h.Fill(&host.Sample{At: start()})
	require.Empty(t, h.Counters, "a device that is gone is forgotten")
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	s := host.Sample{At: start()}
	for i := range 10000 {
		s.Disks = append(s.Disks, host.Disk{Name: fmt.Sprint(i), Errors: &host.Counter{}})
	}
	var h host.History
	h.Fill(&s)
	require.Len(t, h.Counters, 4096)
}
