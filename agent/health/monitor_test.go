package health

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

const (
	testBoot   = "a1b2c3d4-0000-4000-8000-000000000001"
	laterBoot  = "a1b2c3d4-0000-4000-8000-000000000002"
	firstUUID  = "GPU-11111111-2222-3333-4444-555555555555"
	secondUUID = "GPU-66666666-7777-8888-9999-000000000000"
)

// smi is nvidia-smi with two healthy GPUs, unless a file beside it has other output of the query.
func smi(t *testing.T, query string) string {
	t.Helper()
	return agenttest.Stub(t, `case "$1" in
nvlink) exit 0 ;;
esac
`+query)
}

// healthyGPUs prints the present columns of two GPUs.
func healthyGPUs() string { return gpusThrough("cat") }

// gpusThrough prints the columns of two GPUs through a filter.
func gpusThrough(filter string) string {
	return `(` + filter + `) <<END
0, ` + firstUUID + `, 00000000:3B:00.0, NVIDIA H100 80GB HBM3, None, 0, 0, No, No, No, 0, 0, [N/A], [N/A], 40, 0x0000000000000001, [N/A]
1, ` + secondUUID + `, 00000000:86:00.0, NVIDIA H100 80GB HBM3, None, 0, 2, No, No, No, 1, 0, [N/A], [N/A], 41, 0x0000000000000001, [N/A]
END
`
}

// bench is the host of a monitor.
type bench struct {
	t    *testing.T
	conf Config
	mu   sync.Mutex
	at   time.Time
}

func newBench(t *testing.T) *bench {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc", "meminfo"), []byte("MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\n"), 0o600))
	b := &bench{t: t, at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	b.conf = Config{
		State: disk.At(t.TempDir()), Root: root, BootID: testBoot, SMI: "/no/such/nvidia-smi", Checks: Selection{some: true},
		Journal: []string{"-D", t.TempDir()}, Now: b.now, Log: slog.New(slog.DiscardHandler),
	}
	return b
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = b.at.Add(d)
}

// monitor is the next process of the agent.
func (b *bench) monitor() *Monitor {
	b.t.Helper()
	m, err := New(b.conf)
	require.NoError(b.t, err)
	return m
}

// check makes a sample and returns the conditions by checker and component.
func (b *bench) check(m *Monitor) map[string]health.Condition {
	b.t.Helper()
	_, _, err := m.Check(b.t.Context(), 0)
	require.NoError(b.t, err)
	require.NoError(b.t, m.Report().Validate())
	got := map[string]health.Condition{}
	for _, c := range m.Report().Conditions {
		got[strings.TrimSpace(c.Checker+" "+c.Component)] = c
	}
	return got
}

// limit shortens the deadline of a source.
func limit(m *Monitor, input host.Input, d time.Duration) {
	for _, s := range m.sources {
		if s.input == input {
			s.timeout = d
		}
	}
}

func TestHealthyHost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.conf.SMI = smi(t, healthyGPUs())
	b.conf.Services = func(context.Context) ([]host.Service, error) {
		return []host.Service{{Name: "nvidia-fabricmanager", Active: true}}, nil
	}
	b.conf.ClockOffset = func() (time.Duration, bool) { return time.Second, true }
	m := b.monitor()
	require.Nil(t, m.Report())
	got := b.check(m)
	for _, name := range []string{"gpu_count", "gpu_xid", "gpu_ecc", "gpu_row_remap", "gpu_thermal", "gpu_recovery_action", "host_memory", "host_services"} {
		require.Equal(t, health.Healthy, got[name].Status, "%s: %+v", name, got[name])
	}
	require.Equal(t, testBoot, m.Report().BootID)
	b.pass(time.Minute)
	require.Equal(t, 2, b.check(m)["gpu_count"].Samples)
	b.pass(time.Minute)
	require.Equal(t, 3, b.check(b.monitor())["gpu_count"].Samples, "the next process continues")
}

// TestVanishedGPU: the node expects the GPUs that it had, and a GPU that the driver cannot read is lost.
func TestVanishedGPU(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.conf.SMI = smi(t, healthyGPUs())
	b.check(b.monitor())

	b.conf.SMI = smi(t, gpusThrough("head -1"))
	got := b.check(b.monitor())["gpu_count"]
	require.Equal(t, health.Unhealthy, got.Status)
	require.Equal(t, host.ReasonCountMismatch, got.Reason)

	b.conf.SMI = smi(t, gpusThrough("head -1")+`
echo "Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.  Reboot the system to recover this GPU"; exit 15`)
	got = b.check(b.monitor())["gpu_count "+secondUUID]
	require.Equal(t, host.ReasonGPULost, got.Reason, "it is named although its UUID cannot be read")
	require.Equal(t, health.RepairReboot, got.Repair)
}

// TestGPURequiresReset: nvidia-smi prints that instead of the figures of a GPU.
func TestGPURequiresReset(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.conf.SMI = smi(t, gpusThrough(`sed '2s/None.*/[GPU requires reset], [GPU requires reset], [GPU requires reset], [N\/A], [N\/A], [N\/A], [N\/A], [N\/A], [N\/A], [N\/A], [GPU requires reset], [N\/A], [GPU requires reset]/'`))
	got := b.check(b.monitor())
	require.Equal(t, health.RepairResetGPU, got["gpu_recovery_action "+secondUUID].Repair, "%+v", got)
	require.Equal(t, health.Healthy, got["gpu_count"].Status)
}

// TestRecordedLosses: the recorded lines of lost GPUs make lost GPUs.
func TestRecordedLosses(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../schema/health/device/testdata/nvidia-smi.json")
	require.NoError(t, err)
	var corpus []struct{ Line, Lost string }
	require.NoError(t, json.Unmarshal(raw, &corpus))
	lost := 0
	for _, c := range corpus {
		gpus, _ := parseGPUs(c.Line, columns())
		require.Equal(t, c.Lost != "", len(gpus) == 1, c.Line)
		if c.Lost != "" {
			lost++
			require.Equal(t, host.GPU{PCI: c.Lost, Lost: true}, gpus[0])
		}
	}
	require.Positive(t, lost)
}

// TestHostileSMI: whatever nvidia-smi does, its checks are unknown, and the others are made.
func TestHostileSMI(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"prints 100 MB": `head -c 100000000 /dev/zero | tr '\0' x`,
		"prints binary": `head -c 100000 /dev/urandom`,
		"fails":         `echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9`,
		"never ends":    `exec sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.conf.SMI = smi(t, healthyGPUs())
			b.check(b.monitor())
			b.conf.SMI = smi(t, script)
			m := b.monitor()
			if name == "never ends" {
				limit(m, host.InputGPUs, 200*time.Millisecond)
			}
			got := b.check(m)
			require.Equal(t, health.Unknown, got["gpu_count"].Status, "%+v", got["gpu_count"])
			require.Equal(t, health.Unknown, got["gpu_ecc"].Status)
			require.Equal(t, health.Healthy, got["host_memory"].Status)
		})
	}
}

// TestHungSource: a call that does not end with its context makes its input missing until it returns,
// and no second call begins meanwhile.
func TestHungSource(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	calls, released := make(chan struct{}, 8), make(chan struct{})
	b.conf.Services = func(context.Context) ([]host.Service, error) {
		calls <- struct{}{}
		<-released
		return []host.Service{{Name: "nvidia-fabricmanager", Active: true}}, nil
	}
	m := b.monitor()
	limit(m, host.InputServices, -answerGrace)
	for range 3 {
		got := b.check(m)
		require.Equal(t, health.Unknown, got["host_services"].Status)
		require.Contains(t, got["host_services"].Detail, "no answer since")
		require.Equal(t, health.Healthy, got["host_memory"].Status)
	}
	<-calls
	require.Empty(t, calls)
	close(released)
	limit(m, host.InputServices, time.Minute)
	require.Eventually(t, func() bool { return b.check(m)["host_services"].Status == health.Healthy }, time.Minute, time.Millisecond)
}

// TestOlderDriver: columns that a driver does not have are absent, and asked for once.
func TestOlderDriver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	asked := filepath.Join(t.TempDir(), "asked")
	b.conf.SMI = smi(t, `echo "$1" >> `+asked+`
case "$1" in
*gpu_recovery_action*) echo 'Field "gpu_recovery_action" is not a valid field to query.'; exit 2 ;;
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
esac
echo "0, `+firstUUID+`, 00000000:3B:00.0, Tesla T4, 0, 0, [N/A], No, No, 0, 0, 0, No, 91, 0x0000000000000048, 30"`)
	m := b.monitor()
	got := b.check(m)
	require.NotContains(t, got, "gpu_recovery_action")
	require.Equal(t, host.ReasonThermalSlowdown, got["gpu_thermal "+firstUUID].Reason)
	b.check(m)
	text, err := os.ReadFile(asked)
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(text), "\n"), "two refusals and two samples")
	require.Contains(t, string(text), "clocks_throttle_reasons.active")
}

// TestLinks: links that were up and are down are a fault; those of a GPU without a bridge are not.
func TestLinks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	links := func(first, second, more string) string {
		return agenttest.Stub(t, `case "$1 $2" in
"nvlink -s") echo "GPU 0: NVIDIA H100 (UUID: `+firstUUID+`)
	 Link 0: `+first+`
	 Link 1: 26.562 GB/s
GPU 1: NVIDIA H100 (UUID: `+secondUUID+`)
	 Link 0: `+second+`"; `+more+` exit 0 ;;
"nvlink -e") echo "GPU 0: NVIDIA H100 (UUID: `+firstUUID+`)
	 Link 0: Replay Errors: 7
	 Link 0: CRC Errors: 1"; exit 0 ;;
esac
`+healthyGPUs())
	}
	b.conf.SMI = links("26.562 GB/s", "<inactive>", "")
	require.Equal(t, health.Healthy, b.check(b.monitor())["gpu_nvlink"].Status)
	b.conf.SMI = links("<inactive>", "<inactive>", "")
	got := b.check(b.monitor())
	require.Equal(t, host.ReasonLinkDown, got["gpu_nvlink "+firstUUID].Reason)
	require.NotContains(t, got, "gpu_nvlink "+secondUUID)
	b.conf.SMI = links("26.562 GB/s", "<inactive>", "echo 'NVML: Unable to retrieve Nvlink information as all links are inActive'; exit 9;")
	require.Equal(t, health.Healthy, b.check(b.monitor())["gpu_nvlink"].Status)
	b.conf.SMI = links("26.562 GB/s", "<inactive>", "exit 9;")
	require.Equal(t, health.Unknown, b.check(b.monitor())["gpu_nvlink"].Status, "not all links are down")
}

// TestSwitchedOffChecks: names switch checks off, none switches all off.
func TestSwitchedOffChecks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var err error
	b.conf.Checks, err = ParseSelection("-host_memory, -host_kernel")
	require.NoError(t, err)
	require.NotContains(t, b.check(b.monitor()), "host_memory")
	b.conf.Checks, err = ParseSelection("none")
	require.NoError(t, err)
	m := b.monitor()
	m.Run(t.Context(), func() { t.Error("a check was made") })
	require.Nil(t, m.Report())
	for _, bad := range []string{"host_memory", "-host", "all,-host_memory", "-"} {
		_, err := ParseSelection(bad)
		require.ErrorContains(t, err, "-gpu_count", bad)
	}
}

// fullDisk is a disk without space for new files.
type fullDisk struct{ disk.OS }

func (fullDisk) Create(string) (disk.File, error) { return nil, syscall.ENOSPC }

// TestFullDisk: the checks continue without their stored state, and this is logged once.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := &agenttest.LogBuffer{}
	b.conf.State.FS, b.conf.Log = fullDisk{}, slog.New(slog.NewJSONHandler(log, nil))
	m := b.monitor()
	b.check(m)
	require.Equal(t, 2, b.check(m)["host_memory"].Samples)
	require.Equal(t, 1, strings.Count(log.String(), "cannot store the state of the health checks"))
}

// TestEndOfTheAgent: what the end of the agent breaks off is no result.
func TestEndOfTheAgent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.monitor()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the agent ends"))
	_, _, err := m.Check(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, m.Report())
}

// TestMounts: of the mounts of block devices, those that became read-only are reported.
func TestMounts(t *testing.T) {
	t.Parallel()
	list := parseMounts(`22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 27 259:4 / /mnt/my\040data rw,noatime shared:9 - xfs /dev/nvme1n1 ro,attr2
31 27 259:5 /sub /bind rw - ext4 /dev/nvme2n1 ro
32 27 7:1 / /snap/core ro - squashfs /dev/loop1 ro
33 27 11:0 / /media ro - iso9660 /dev/sr0 ro
broken line`)
	require.Equal(t, []mount{
		{device: "259:2", path: "/", source: "/dev/nvme0n1p2"}, {device: "259:4", path: "/mnt/my data", source: "/dev/nvme1n1", readOnly: true},
	}, list)
	require.Equal(t, map[string]bool{"/mnt/my data": true}, readOnlyMounts("# /dev/x /y ext4 ro 0 0\n/dev/nvme1n1 /mnt/my\\040data xfs noatime,ro 0 0\n/dev/a / ext4 defaults 0 1\n"))
	require.Equal(t, "259:2", deviceOf(259<<8|2))
	require.Equal(t, "8:300", deviceOf(8<<8|300&0xff|(300&^0xff)<<12))
}

func FuzzParseGPUs(f *testing.F) {
	f.Add("0, GPU-1, 00000000:3B:00.0")
	f.Add("Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.")
	f.Fuzz(func(t *testing.T, out string) {
		gpus, err := parseGPUs(out, columns()[:identity])
		require.True(t, err == nil || len(gpus) == 0)
		for _, g := range gpus {
			require.NotEmpty(t, g.UUID+g.PCI)
			require.LessOrEqual(t, len(g.UUID), health.MaxComponent)
		}
	})
}
