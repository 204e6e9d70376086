package host

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
)

// The reasons of gpu_xid and gpu_sxid: one for each device.Class.
const (
	ReasonNoXID            = "NoXID"
	ReasonNoSXID           = "NoSXID"
	ReasonApplicationFault = "ApplicationFault"
	ReasonInformation      = "Information"
	ReasonMemoryFault      = "MemoryFault"
	ReasonLinkFault        = "LinkFault"
	ReasonBusFault         = "BusFault"
	ReasonFirmwareFault    = "FirmwareFault"
	ReasonHardwareFault    = "HardwareFault"
	ReasonSoftwareFault    = "SoftwareFault"
	ReasonUnlistedCode     = "UnlistedCode"
)

// noteTime is how long an event is shown that needs no repair.
const noteTime = 10 * time.Minute

// gpuXID classifies the XIDs of this boot by the vendor's table. An XID that needs a repair lasts until
// the GPU was reset or the node was rebooted; the others are shown for noteTime. It has no threshold,
// because an event does not last.
func gpuXID(t device.Table) health.Checker[Sample] {
	return checker{
		name: "gpu_xid", input: InputKernel, healthy: ReasonNoXID,
		applies: hasGPUs,
		faults:  func(s Sample) []health.Result { return codeFaults(s, t, device.KindXID) },
	}
}

// gpuSXID classifies the SXIDs of NVSwitches like gpuXID.
func gpuSXID(t device.Table) health.Checker[Sample] {
	return checker{
		name: "gpu_sxid", input: InputKernel, healthy: ReasonNoSXID,
		applies: hasGPUs,
		faults:  func(s Sample) []health.Result { return codeFaults(s, t, device.KindSXID) },
	}
}

// hasGPUs reports whether the host has GPUs, or should have them.
func hasGPUs(s Sample) bool {
	_, missing := s.Missing[InputGPUs]
	return missing || s.ExpectedGPUs > 0 || len(s.GPUs) > 0
}

// codeFaults returns for each device the event that needs the most harmful repair, and of two the later
// one.
func codeFaults(s Sample, t device.Table, kind device.Kind) []health.Result {
	worst := map[string]health.Result{}
	latest := latestActions(s)
	for i, e := range s.Events {
		if e.Kind != kind || e.BootID != s.BootID {
			continue
		}
		g, listed := s.gpuAt(e.Device)
		if listed && !e.At.After(g.ResetAt) {
			continue
		}
		if e.Action != "" && latest[e.Device] != i {
			continue
		}
		r := classify(t, e, g, listed)
		if !r.Repair.Acts() && s.At.Sub(e.At) > noteTime {
			continue
		}
		r.Component = componentOf(s, g.UUID, e.Device)
		if before, ok := worst[r.Component]; !ok || !milder(r.Repair, before.Repair) {
			worst[r.Component] = r
		}
	}
	return slices.SortedFunc(maps.Values(worst), func(a, b health.Result) int { return cmp.Compare(a.Component, b.Component) })
}

// latestActions returns, for each device, the index of the last event that names a recovery action: it
// replaces the earlier ones.
func latestActions(s Sample) map[string]int {
	latest := map[string]int{}
	for i, e := range s.Events {
		if e.Action != "" && e.BootID == s.BootID {
			latest[e.Device] = i
		}
	}
	return latest
}

// classify returns the result of one event. The recovery action that the driver shows now decides
// before the table, because it is about this GPU and not only about the code.
func classify(t device.Table, e Event, g GPU, listed bool) health.Result {
	row := t.Lookup(e.Code, g.Model)
	repair := row.RepairOf(e.Event)
	if listed && !g.Lost && g.RecoveryAction != "" && repair.Acts() {
		repair = g.RecoveryAction.Repair()
		if !repair.Acts() {
			repair = health.RepairObserve
		}
	}
	return health.Result{
		Status: health.Unhealthy, Reason: classReason(row.Class), Code: e.Code, Repair: repair,
		Detail: fmt.Sprintf("%s %d: %s: %s", kindName(e.Kind), e.Code, row.Meaning, e.Message),
	}
}

func kindName(k device.Kind) string {
	if k == device.KindSXID {
		return "SXID"
	}
	return "XID"
}

func classReason(c device.Class) string {
	switch c {
	case device.Application:
		return ReasonApplicationFault
	case device.Information:
		return ReasonInformation
	case device.Memory:
		return ReasonMemoryFault
	case device.Link:
		return ReasonLinkFault
	case device.Bus:
		return ReasonBusFault
	case device.Firmware:
		return ReasonFirmwareFault
	case device.Hardware:
		return ReasonHardwareFault
	case device.Software:
		return ReasonSoftwareFault
	}
	return ReasonUnlistedCode
}

// gpuAt returns the GPU with a bus address.
func (s Sample) gpuAt(address string) (GPU, bool) {
	for _, g := range s.GPUs {
		if device.PCIAddress(g.PCI) == address && address != "" {
			return g, true
		}
	}
	return GPU{}, false
}

// componentOf returns the name of a GPU or another device as a component: its UUID, or its bus address
// if the UUID was never read.
func componentOf(s Sample, uuid, pci string) string {
	address := cmp.Or(device.PCIAddress(pci), pci)
	return cmp.Or(uuid, s.UUIDs[address], address)
}

func milder(a, b health.Repair) bool {
	order := health.Repairs()
	return slices.Index(order, a) < slices.Index(order, b)
}
