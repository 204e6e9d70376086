package device_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
)

// recorded is one row of testdata/kernel.json.
type recorded struct {
	Line   string        `json:"line"`
	Kind   device.Kind   `json:"kind"`
	Code   int           `json:"code"`
	Device string        `json:"device"`
	Fatal  bool          `json:"fatal"`
	Action device.Action `json:"action"`
	Model  string        `json:"model"`
	Class  device.Class  `json:"class"`
	Repair health.Repair `json:"repair"`
	Source string        `json:"source"`
}

func corpus(t testing.TB) (rows []recorded) {
	t.Helper()
	data, err := os.ReadFile("testdata/kernel.json")
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&rows))
	require.NotEmpty(t, rows)
	return rows
}

func TestCorpus(t *testing.T) {
	t.Parallel()
	p := device.NewParser()
	xids, err := device.XIDs()
	require.NoError(t, err)
	sxids, err := device.SXIDs()
	require.NoError(t, err)
	for _, r := range corpus(t) {
		e, ok := p.Parse(r.Line)
		require.True(t, ok, r.Line)
		require.Equal(t, r.Kind, e.Kind, r.Line)
		require.Equal(t, r.Code, e.Code, r.Line)
		require.Equal(t, r.Device, e.Device, r.Line)
		require.Equal(t, r.Fatal, e.Fatal, r.Line)
		require.Equal(t, r.Action, e.Action, r.Line)
		table := xids
		switch r.Kind {
		case device.KindSXID:
			table = sxids
		case device.KindXID:
		default:
			continue
		}
		row := table.Lookup(e.Code, r.Model)
		require.Equal(t, r.Class, row.Class, r.Line)
		require.Equal(t, r.Repair, row.RepairOf(e), r.Line)
	}
}

func TestSMICorpus(t *testing.T) {
	t.Parallel()
	for _, r := range smiCorpus(t) {
		require.Equal(t, r.Lost, device.LostGPU(r.Line), r.Line)
		if r.Action != "" {
			_, value, found := strings.Cut(r.Line, ": ")
			if !found {
				value = r.Line
			}
			require.Equal(t, r.Action, device.ParseAction(value), r.Line)
		}
	}
	require.Empty(t, device.LostGPU("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."))
}

// smiRecorded is one row of testdata/nvidia-smi.json.
type smiRecorded struct {
	Line   string        `json:"line"`
	Lost   string        `json:"lost"`
	Action device.Action `json:"action"`
	Source string        `json:"source"`
}

func smiCorpus(t *testing.T) (rows []smiRecorded) {
	t.Helper()
	data, err := os.ReadFile("testdata/nvidia-smi.json")
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&rows))
	require.NotEmpty(t, rows)
	return rows
}

func TestCorpusNamesItsSources(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("testdata/README.md")
	require.NoError(t, err)
	sources := map[string]bool{}
	for _, r := range corpus(t) {
		sources[r.Source] = true
	}
	for _, r := range smiCorpus(t) {
		sources[r.Source] = true
	}
	for source := range sources {
		require.Regexp(t, `(?m)^\| ([\w, -]+, )?`+source+`(, [\w, -]+)? \|`, string(readme))
	}
}

func TestParseIgnoresOtherLines(t *testing.T) {
	t.Parallel()
	p := device.NewParser()
	for _, line := range []string{
		"",
		"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01",
		"NVRM: Xid (invalid): some error",
		"NVRM: Xid error: xyz, invalid data",
		"NVRM: Xid (PCI:0000:01:00): 123456, code of six digits",
		"NVRM: Xid (PCI:0000:01:00): 99999999999999999999, overflow",
		"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
		"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Data {0x10000000, 0x10000000}",
		"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
		"mce: [Hardware Error]: Machine check events logged",
		"EDAC sbridge MC1: HANDLING MCE MEMORY ERROR",
		"EDAC MC1: Giving out device to module sb_edac controller Broadwell SrcID#0_Ha#0: DEV 0000:7f:12.0 (INTERRUPT)",
		"mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
		"mlx5_core 0000:13:00.0: mlx5_pcie_event:297:(pid 11): PCIe slot power capability was not advertised.",
		"EXT4-fs (md127p3): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 r/w. Quota mode: none.",
	} {
		e, ok := p.Parse(line)
		require.False(t, ok, "%s: %+v", line, e)
	}
}

func TestMachineCheckThatWasCorrected(t *testing.T) {
	t.Parallel()
	e, ok := device.NewParser().Parse("mce: [Hardware Error]: CPU 1: Machine Check Event: 0 Bank 11: 8c00004f000800c2")
	require.True(t, ok)
	require.False(t, e.Fatal, "bit 61 of the status is not set")
}

// The name of a process is part of an XID's line, and its user chooses it: at most 15 characters.
func TestProcessNamesDoNotSetTheSeverity(t *testing.T) {
	t.Parallel()
	p := device.NewParser()
	for _, name := range []string{" Fatal ", "a Fatal XC0 i0 "} {
		e, ok := p.Parse("NVRM: Xid (PCI:0000:01:00): 145, pid=7, name=" + name + ", RLW_REMAP Nonfatal XC0 i0 Link 02 (0x4 0x1)")
		require.True(t, ok)
		require.False(t, e.Fatal, name)
	}
	e, ok := p.Parse("NVRM: Xid (PCI:0000:01:00): 154, pid=7, name=a to 0x2 (b), GPU recovery action changed from 0x1 (Reset) to 0x0 (None)")
	require.True(t, ok)
	require.Equal(t, device.ActionNone, e.Action)
}

func TestPCIAddress(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"0000:3B:00.0": "0000:3b:00", "00000000:3B:00.0": "0000:3b:00", "PCI:0000:3b:00": "0000:3b:00", "3b:00.0": "0000:3b:00",
		"0004:01:00": "0004:01:00", "00010000:01:00.0": "10000:01:00",
		"": "", "3b": "", "0000:3b:00.10": "", "zz:00": "", "0000:3b:0g": "", "1:2:3:4": "", "0000:-b:00": "", "0000:3b:00.0\n": "0000:3b:00",
	} {
		require.Equal(t, want, device.PCIAddress(in), "%q", in)
	}
}

func FuzzParse(f *testing.F) {
	for _, r := range corpus(f) {
		f.Add(r.Line)
	}
	f.Add("NVRM: Xid (PCI:0000:01:00): 13, \x1b[2J\x00\xff" + strings.Repeat("x", 5000))
	p := device.NewParser()
	xids, err := device.XIDs()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, line string) {
		e, ok := p.Parse(line)
		if !ok {
			require.Zero(t, e)
			return
		}
		require.NotEmpty(t, e.Kind)
		require.GreaterOrEqual(t, e.Code, 0)
		require.LessOrEqual(t, e.Code, 99999)
		require.LessOrEqual(t, len(e.Message), 200)
		require.LessOrEqual(t, len(e.Device), 64)
		for _, b := range []byte(e.Message + e.Device) {
			require.True(t, b >= ' ' && b <= '~', "%q", e)
		}
		require.Contains(t, health.Repairs(), xids.Lookup(e.Code, "").RepairOf(e))
	})
}
