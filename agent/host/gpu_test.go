package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func smiFixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "nvidia-smi", name))
	require.NoError(t, err)
	return data
}

func TestParseSMI(t *testing.T) {
	t.Parallel()
	gpus, err := parseSMI(smiFixture(t, "h100.csv"))
	require.NoError(t, err)
	require.Len(t, gpus, 2)
	require.Equal(t, inventory.GPU{
		Index: 1, UUID: "GPU-0b7a3f8e-55c1-2f0d-9e64-5b1f0c9d3e21", Model: "NVIDIA H100 80GB HBM3",
		MemoryBytes: 81559 << 20, Driver: "550.90.07", Serial: "1652823054611",
	}, gpus[1])

	gpus, err = parseSMI(smiFixture(t, "geforce.csv"))
	require.NoError(t, err)
	require.Empty(t, gpus[0].Serial)
	require.Equal(t, "535.183.01", gpus[0].Driver)

	gpus, err = parseSMI(smiFixture(t, "absent-values.csv"))
	require.NoError(t, err)
	require.Empty(t, gpus[0].Driver+gpus[0].Serial)

	gpus, err = parseSMI(smiFixture(t, "none.csv"))
	require.NoError(t, err)
	require.Equal(t, []inventory.GPU{}, gpus)
}

func TestParseSMIRefuses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"no-devices.txt", "no-driver.txt", "mismatch.txt", "lost-gpu.txt", "header.csv"} {
		_, err := parseSMI(smiFixture(t, name))
		require.Error(t, err, name)
	}
	good := string(smiFixture(t, "geforce.csv"))
	for name, text := range map[string]string{
		"five columns":       "0, GPU-1, T4, 15360, 550",
		"seven columns":      "0, GPU-1, T4, 15360, 550, 0, 1",
		"index":              "-1, GPU-1, T4, 15360, 550, 0",
		"uuid":               "0, 1234, T4, 15360, 550, 0",
		"no name":            "0, GPU-1, [N/A], 15360, 550, 0",
		"no memory":          "0, GPU-1, T4, [N/A], 550, 0",
		"unit":               "0, GPU-1, T4, 15360 MiB, 550, 0",
		"memory of nonsense": "0, GPU-1, T4, 99999999999999, 550, 0",
		"twice":              good + good,
		"lost in the middle": good + string(smiFixture(t, "lost-gpu.txt")),
	} {
		_, err := parseSMI([]byte(text))
		require.Error(t, err, name)
	}
}

func FuzzParseSMI(f *testing.F) {
	files, _ := filepath.Glob("testdata/nvidia-smi/*.*")
	for _, name := range files {
		f.Add(smiFixture(f, filepath.Base(name)))
	}
	f.Fuzz(func(t *testing.T, out []byte) {
		gpus, err := parseSMI(out)
		if err != nil {
			require.Nil(t, gpus)
			return
		}
		seen := map[string]bool{}
		for _, g := range gpus {
			require.Positive(t, g.MemoryBytes)
			require.NotEmpty(t, g.Model)
			require.False(t, seen[g.UUID])
			seen[g.UUID] = true
		}
	})
}

func TestNvidiaSMI(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs(filepath.Join("testdata", "nvidia-smi"))
	require.NoError(t, err)
	t.Run("absent", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{"no-such-nvidia-smi", "/no/such/nvidia-smi"} {
			gpus, err := nvidiaSMI{path: path}.list(t.Context())
			require.NoError(t, err)
			require.Equal(t, []inventory.GPU{}, gpus)
		}
	})
	t.Run("works", func(t *testing.T) {
		t.Parallel()
		path := agenttest.Stub(t, `test "$1" = "--query-gpu=index,uuid,name,memory.total,driver_version,serial" || exit 9
test "$2" = "--format=csv,noheader,nounits" || exit 9
cat `+dir+`/h100.csv`)
		gpus, err := nvidiaSMI{path: path}.list(t.Context())
		require.NoError(t, err)
		require.Len(t, gpus, 2)
	})
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"no-driver.txt", "mismatch.txt", "no-devices.txt"} {
			gpus, err := nvidiaSMI{path: agenttest.Stub(t, "cat "+dir+"/"+name+"; exit 9")}.list(t.Context())
			require.Nil(t, gpus)
			require.Equal(t, schema.KindTaskFailed, schema.KindOf(err))
			require.Contains(t, err.Error(), string(smiFixture(t, name)[:20]), "the output is in the error")
		}
	})
	t.Run("succeeds with nonsense", func(t *testing.T) {
		t.Parallel()
		_, err := nvidiaSMI{path: agenttest.Stub(t, "cat "+dir+"/lost-gpu.txt")}.list(t.Context())
		require.ErrorContains(t, err, "unexpected")
	})
	t.Run("not executable", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "nvidia-smi")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := nvidiaSMI{path: path}.list(t.Context())
		require.ErrorContains(t, err, "cannot be run")
	})
	t.Run("prints too much", func(t *testing.T) {
		t.Parallel()
		_, err := nvidiaSMI{path: agenttest.Stub(t, `head -c 1000000 /dev/zero | tr '\0' x`)}.list(t.Context())
		require.Error(t, err)
		require.Less(t, len(err.Error()), 2000)
	})
}

// host writes a tree of files that looks like a Linux host.
func host(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return Host{root: root, smi: nvidiaSMI{path: "/no/such/nvidia-smi"}}
}

func gpuHost(t *testing.T) Host {
	t.Helper()
	return host(t, map[string]string{
		"etc/os-release":                          "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\n",
		"proc/cpuinfo":                            "processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n",
		"proc/meminfo":                            "MemTotal:       2113530528 kB\nMemFree:  1 kB\nMemAvailable:   2100000000 kB\n",
		"sys/block/nvme0n1/size":                  "7501476528\n",
		"sys/block/nvme0n1/device/model":          "SAMSUNG MZQL23T8\n",
		"sys/block/loop0/size":                    "8\n",
		"sys/block/sda/size":                      "0\n",
		"sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
		"sys/bus/pci/devices/0000:3b:00.0/class":  "0x030200\n",
		"sys/bus/pci/devices/0000:3b:00.1/vendor": "0x10de\n",
		"sys/bus/pci/devices/0000:3b:00.1/class":  "0x040300\n",
		"sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
		"sys/bus/pci/devices/0000:00:02.0/class":  "0x030000\n",
	})
}

func TestFacts(t *testing.T) {
	t.Parallel()
	h := gpuHost(t)
	now := time.Now()
	f, err := h.Collect(t.Context(), now)
	require.NoError(t, err)
	require.Equal(t, "Ubuntu 24.04.1 LTS", f.OS)
	require.Equal(t, 2, f.CPUs)
	require.Equal(t, "AMD EPYC 9654", f.CPUModel)
	require.Equal(t, int64(2113530528)<<10, f.MemoryBytes)
	require.Equal(t, []inventory.Disk{{Name: "nvme0n1", SizeBytes: 7501476528 * 512, Model: "SAMSUNG MZQL23T8"}}, f.Disks)
	require.NotNil(t, f.GPUs)
	require.Equal(t, now.UTC(), f.CollectedAt)
	require.NotEmpty(t, f.Hostname)
}

func TestFactsGPUError(t *testing.T) {
	t.Parallel()
	h := gpuHost(t)
	h.smi = nvidiaSMI{path: agenttest.Stub(t, "echo broken; exit 9")}
	_, err := h.Collect(t.Context(), time.Now())
	require.Equal(t, schema.KindTaskFailed, schema.KindOf(err))
}

func TestFactsEmptyRoot(t *testing.T) {
	t.Parallel()
	f, err := host(t, nil).Collect(t.Context(), time.Now())
	require.NoError(t, err)
	require.NotEmpty(t, f.OS)
	require.Positive(t, f.CPUs)
	require.Len(t, f.Disks, 1, "the file system without a visible device")
}

func probed(t *testing.T, p Probe, offset *time.Duration) (inventory.ProbeReport, map[string]inventory.ProbeCheck) {
	t.Helper()
	out, err := p.Run(t.Context(), offset)
	require.NoError(t, err)
	r, ok := out.(inventory.ProbeReport)
	require.True(t, ok)
	checks := map[string]inventory.ProbeCheck{}
	for _, c := range r.Checks {
		require.NotEmpty(t, c.Detail)
		checks[c.Name] = c
	}
	require.Len(t, checks, 4)
	return r, checks
}

func TestProbe(t *testing.T) {
	t.Parallel()
	second, hour := -time.Second, time.Hour
	healthy := Probe{Host: host(t, map[string]string{"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\n"}), StateDir: t.TempDir()}
	r, _ := probed(t, healthy, &second)
	require.True(t, r.Healthy, "%v", r.Failed())
	r, _ = probed(t, healthy, nil)
	require.True(t, r.Healthy, "%v", r.Failed())

	r, checks := probed(t, healthy, &hour)
	require.False(t, r.Healthy)
	require.False(t, checks["clock"].OK)

	r, checks = probed(t, Probe{Host: gpuHost(t), StateDir: t.TempDir()}, nil)
	require.False(t, r.Healthy)
	require.Contains(t, checks["gpu"].Detail, "1 NVIDIA devices on the bus")

	broken := healthy
	broken.Host.smi = nvidiaSMI{path: agenttest.Stub(t, "echo lost; exit 9")}
	_, checks = probed(t, broken, nil)
	require.Contains(t, checks["gpu"].Detail, "lost")

	broken = healthy
	broken.StateDir = "/no/such/folder"
	broken.Host = host(t, map[string]string{"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 7000 kB\n"})
	_, checks = probed(t, broken, nil)
	require.False(t, checks["disk"].OK)
	require.False(t, checks["memory"].OK)
}

// A probe that is interrupted reports no failed check: the next start of the agent repeats it.
func TestInterruptedProbe(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	p := Probe{Host: host(t, nil), StateDir: t.TempDir()}
	p.Host.smi = nvidiaSMI{path: agenttest.Stub(t, "echo > "+started+"; exec sleep 300")}
	result := make(chan error, 1)
	go func() {
		_, err := p.Run(ctx, nil)
		result <- err
	}()
	require.Eventually(t, func() bool {
		_, err := os.Stat(started)
		return err == nil
	}, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
}

func TestUptime(t *testing.T) {
	t.Parallel()
	require.Equal(t, int64(12345), parseUptime("12345.67 4000.1"))
	for _, bad := range []string{"", "x", "-1 2"} {
		require.Zero(t, parseUptime(bad))
	}
}
