package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
)

// repairOf returns the repair of an XID without a severity.
func repairOf(t *testing.T, code int) health.Repair {
	t.Helper()
	xids, err := device.XIDs()
	require.NoError(t, err)
	return xids.Lookup(code, "").RepairOf(device.Event{Kind: device.KindXID, Code: code})
}

// The sources agree that these codes need at least a reset.
func TestXIDsThatNeedAReset(t *testing.T) {
	t.Parallel()
	for _, code := range []int{46, 62, 95, 109, 110, 136, 140, 143, 155, 156, 158} {
		require.Equal(t, health.RepairResetGPU, repairOf(t, code), code)
	}
}

// Where the sources disagree, the row names both, and the least harmful repair is taken.
func TestXIDsOnWhichSourcesDisagree(t *testing.T) {
	t.Parallel()
	xids, err := device.XIDs()
	require.NoError(t, err)
	for code, want := range map[int]health.Repair{
		63: health.RepairNone, 64: health.RepairResetGPU, 119: health.RepairResetGPU, 120: health.RepairResetGPU, 79: health.RepairReboot,
		48: health.RepairResetGPU, 74: health.RepairResetGPU, 54: health.RepairReboot, 160: health.RepairNone, 142: health.RepairObserve,
	} {
		require.Equal(t, want, repairOf(t, code), code)
		row := xids.Lookup(code, "")
		require.True(t, row.Disagree(), code)
		require.Len(t, row.Says, 2, code)
	}
	require.False(t, xids.Lookup(13, "").Disagree())
}

func TestXIDsOfApplications(t *testing.T) {
	t.Parallel()
	xids, err := device.XIDs()
	require.NoError(t, err)
	for _, code := range []int{13, 31, 32, 69} {
		require.Equal(t, device.Application, xids.Lookup(code, "").Class, code)
		require.Equal(t, health.RepairNone, repairOf(t, code), code)
	}
}

func TestUnlistedCodeIsObserved(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 1, 9999} {
		require.Equal(t, health.RepairObserve, repairOf(t, code), code)
	}
	sxids, err := device.SXIDs()
	require.NoError(t, err)
	row := sxids.Lookup(11111, "")
	require.Equal(t, device.Unlisted, row.Class)
	require.Equal(t, health.RepairObserve, row.RepairOf(device.Event{Kind: device.KindSXID, Code: 11111, Fatal: true}))
}

// An NVLink XID of newer models needs a repair only if its line says that it is fatal.
func TestSeverityDecidesLinkXIDs(t *testing.T) {
	t.Parallel()
	xids, err := device.XIDs()
	require.NoError(t, err)
	for code := 144; code <= 150; code++ {
		e := device.Event{Kind: device.KindXID, Code: code}
		require.Equal(t, health.RepairObserve, xids.Lookup(code, "NVIDIA B200").RepairOf(e))
		e.Fatal = true
		require.Equal(t, health.RepairResetGPU, xids.Lookup(code, "NVIDIA B200").RepairOf(e))
		require.Equal(t, health.RepairObserve, xids.Lookup(code, "NVIDIA A100-SXM4-80GB").RepairOf(e))
	}
}

func TestTablesAreComplete(t *testing.T) {
	t.Parallel()
	for name, load := range map[string]func() (device.Table, error){"xid": device.XIDs, "sxid": device.SXIDs} {
		table, err := load()
		require.NoError(t, err, name)
		require.NotEmpty(t, table.Version, name)
		require.NotEmpty(t, table.Codes(), name)
		for _, code := range table.Codes() {
			row := table.Lookup(code, "")
			require.NotEmpty(t, row.Name, code)
			require.NotEmpty(t, row.Meaning, code)
			require.NotContains(t, []device.Class{"", device.Unlisted}, row.Class, code)
			for _, fatal := range []bool{false, true} {
				require.Contains(t, health.Repairs(), row.RepairOf(device.Event{Code: code, Fatal: fatal}), code)
			}
			if row.Class == device.Application {
				require.Equal(t, health.RepairNone, row.RepairOf(device.Event{Code: code}), code)
			}
		}
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		action device.Action
		repair health.Repair
	}{
		"None": {device.ActionNone, health.RepairNone}, "0": {device.ActionNone, health.RepairNone}, "0x0": {device.ActionNone, health.RepairNone},
		"Reset": {device.ActionReset, health.RepairResetGPU}, "GPU Reset Required": {device.ActionReset, health.RepairResetGPU}, "1": {device.ActionReset, health.RepairResetGPU},
		"Reboot": {device.ActionReboot, health.RepairReboot}, "Node Reboot": {device.ActionReboot, health.RepairReboot}, "2": {device.ActionReboot, health.RepairReboot},
		"Drain P2P": {device.ActionDrainP2P, health.RepairResetGPU}, "3": {device.ActionDrainP2P, health.RepairResetGPU},
		"Drain and Reset": {device.ActionDrainReset, health.RepairResetGPU}, "0x4": {device.ActionDrainReset, health.RepairResetGPU},
		"Recover IMEX Domain": {device.ActionIMEX, health.RepairObserve}, "5": {device.ActionIMEX, health.RepairObserve},
		"Bus Reset": {device.ActionBusReset, health.RepairReboot}, "6": {device.ActionBusReset, health.RepairReboot},
		"System Reboot": {device.ActionSystemReboot, health.RepairReboot}, "7": {device.ActionSystemReboot, health.RepairReboot},
		"": {"", health.RepairNone}, "N/A": {"", health.RepairNone}, "[N/A]": {"", health.RepairNone}, "[Not Supported]": {"", health.RepairNone},
		"8": {device.ActionOther, health.RepairObserve}, "255": {device.ActionOther, health.RepairObserve}, "Unknown Error": {device.ActionOther, health.RepairObserve},
	} {
		got := device.ParseAction(text)
		require.Equal(t, want.action, got, text)
		require.Equal(t, want.repair, got.Repair(), text)
	}
}

// The driver's action in an XID 154 decides, not the table.
func TestActionOfXID154(t *testing.T) {
	t.Parallel()
	p := device.NewParser()
	xids, err := device.XIDs()
	require.NoError(t, err)
	for to, want := range map[string]health.Repair{
		"0x0 (None)": health.RepairNone, "0x2 (Node Reboot Required)": health.RepairReboot, "0x63 (Node Reboot Required)": health.RepairReboot,
		"0x63 (Something)": health.RepairObserve, "": health.RepairObserve,
	} {
		e, ok := p.Parse("NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to " + to)
		require.True(t, ok)
		require.Equal(t, want, xids.Lookup(154, "").RepairOf(e), to)
	}
}
