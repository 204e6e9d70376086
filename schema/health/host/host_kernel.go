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

// The reasons of host_kernel.
const (
	ReasonNoHardwareErrors = "NoHardwareErrors"
	ReasonMemoryErrors     = "MemoryErrors"
	ReasonCPUErrors        = "CPUErrors"
	ReasonPCIErrors        = "PCIErrors"
	ReasonNICErrors        = "NICErrors"
	ReasonDiskErrors       = "DiskErrors"
)

// maxCorrected is how many errors of one device that did no harm are normal within Window.
const maxCorrected = 10

// hostKernel reports errors of the host's hardware that the kernel logged in this boot, apart from
// those of GPUs. One that could not be corrected lasts until the next boot; many others are shown.
func hostKernel() health.Checker[Sample] {
	return checker{
		name: "host_kernel", input: InputKernel, healthy: ReasonNoHardwareErrors,
		applies: func(Sample) bool { return true },
		faults:  kernelFaults,
	}
}

func kernelFaults(s Sample) []health.Result {
	fatal, others := map[string]health.Result{}, map[string]int{}
	for _, e := range s.Events {
		reason, repair := kernelFault(e.Kind)
		if reason == "" || e.BootID != s.BootID {
			continue
		}
		r := fault(reason, repair, e.Message)
		r.Component = string(e.Kind) + ":" + e.Device
		if e.Fatal {
			fatal[r.Component] = r
			continue
		}
		if s.At.Sub(e.At) > Window {
			continue
		}
		others[r.Component]++
		if _, worse := fatal[r.Component]; !worse && others[r.Component] > maxCorrected {
			r.Repair, r.Detail = health.RepairObserve, fmt.Sprintf("%d errors within %s, the last: %s", others[r.Component], Window, e.Message)
			fatal[r.Component] = r
		}
	}
	return slices.SortedFunc(maps.Values(fatal), func(a, b health.Result) int { return cmp.Compare(a.Component, b.Component) })
}

// kernelFault returns the reason for a kind of events and the repair of an error that could not be
// corrected. The reason is empty for events of GPUs.
func kernelFault(kind device.Kind) (reason string, repair health.Repair) {
	switch kind {
	case device.KindMemory:
		return ReasonMemoryErrors, health.RepairReplace
	case device.KindCPU:
		return ReasonCPUErrors, health.RepairReplace
	case device.KindPCI:
		return ReasonPCIErrors, health.RepairReboot
	case device.KindNIC:
		return ReasonNICErrors, health.RepairReboot
	case device.KindDisk:
		return ReasonDiskErrors, health.RepairReplace
	case device.KindXID, device.KindSXID:
	}
	return "", ""
}

// Window is the time within which a Counter's increase and errors without harm count. An increase
// covers one to two of it.
const Window = 30 * time.Minute
