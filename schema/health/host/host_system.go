package host

import (
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of host_disk, host_clock, host_memory and host_services.
const (
	ReasonDisksUsable     = "DisksUsable"
	ReasonReadOnly        = "ReadOnly"
	ReasonDiskIOErrors    = "IOErrors"
	ReasonDiskFull        = "DiskFull"
	ReasonClockSynced     = "Synchronized"
	ReasonClockUnsynced   = "NotSynchronized"
	ReasonClockOffset     = "OffsetTooLarge"
	ReasonMemoryComplete  = "MemoryComplete"
	ReasonMemoryMissing   = "MemoryMissing"
	ReasonMemoryExhausted = "MemoryExhausted"
	ReasonServicesRun     = "ServicesRun"
	ReasonServiceFailed   = "ServiceFailed"
	ReasonServiceInactive = "ServiceInactive"
	ReasonServiceRestarts = "ServiceRestarts"
)

const (
	minFreeDisk   = 0.05            // of a file system
	maxDiskErrors = 10              // new I/O errors that a disk may have within Window
	maxOffset     = 2 * time.Second // certificates and leases are checked against the clock
	minMemory     = 0.90            // of the SKU's memory: the kernel and the firmware keep some
	minAvailable  = 0.02            // of the memory
	maxRestarts   = 3               // of a service within Window
)

// hostDisk reports file systems that became read-only or are full, and disks with I/O errors.
func hostDisk() health.Checker[Sample] {
	return checker{
		name: "host_disk", threshold: 30 * time.Minute, input: InputDisks, healthy: ReasonDisksUsable,
		applies: func(s Sample) bool { return len(s.Disks) > 0 },
		faults: func(s Sample) []health.Result {
			return each(s.Disks, func(i Disk) string { return i.Name }, diskFault)
		},
	}
}

func diskFault(d Disk) health.Result {
	free := 1.0
	if d.TotalBytes > 0 {
		free = float64(d.FreeBytes) / float64(d.TotalBytes)
	}
	switch {
	case d.ReadOnly:
		return fault(ReasonReadOnly, health.RepairReboot, "the file system became read-only")
	case increase(d.Errors) > maxDiskErrors:
		return fault(ReasonDiskIOErrors, health.RepairReplace, fmt.Sprintf("%d new I/O errors", d.Errors.Increase))
	case free < minFreeDisk:
		return fault(ReasonDiskFull, health.RepairObserve, fmt.Sprintf("%.1f %% of the file system is free", 100*free))
	}
	return health.Result{}
}

// hostClock reports a clock that is not synchronized.
func hostClock() health.Checker[Sample] {
	return checker{
		name: "host_clock", threshold: 30 * time.Minute, input: InputClock, healthy: ReasonClockSynced,
		applies: func(s Sample) bool { return s.Clock != nil },
		faults: func(s Sample) []health.Result {
			switch {
			case s.Clock.Offset.Abs() > maxOffset:
				return []health.Result{fault(ReasonClockOffset, health.RepairRestart, "the clock is off by "+s.Clock.Offset.String())}
			case !s.Clock.Synchronized:
				return []health.Result{fault(ReasonClockUnsynced, health.RepairRestart, "the time service reports no source")}
			}
			return nil
		},
	}
}

// hostMemory reports memory that is missing, for example a failed module, or used up.
func hostMemory() health.Checker[Sample] {
	return checker{
		name: "host_memory", threshold: 30 * time.Minute, input: InputMemory, healthy: ReasonMemoryComplete,
		applies: func(s Sample) bool { return s.Memory != nil },
		faults: func(s Sample) []health.Result {
			m := *s.Memory
			switch {
			case float64(m.TotalBytes) < minMemory*float64(m.ExpectedBytes):
				return []health.Result{fault(ReasonMemoryMissing, health.RepairReplace, fmt.Sprintf("%d of %d GiB are present", m.TotalBytes>>30, m.ExpectedBytes>>30))}
			case float64(m.AvailableBytes) < minAvailable*float64(m.TotalBytes):
				return []health.Result{fault(ReasonMemoryExhausted, health.RepairObserve, fmt.Sprintf("%d of %d MiB are available", m.AvailableBytes>>20, m.TotalBytes>>20))}
			}
			return nil
		},
	}
}

// hostServices reports services of the node that do not run.
func hostServices() health.Checker[Sample] {
	return checker{
		name: "host_services", threshold: 5 * time.Minute, input: InputServices, healthy: ReasonServicesRun,
		applies: func(s Sample) bool { return len(s.Services) > 0 },
		faults: func(s Sample) []health.Result {
			return each(s.Services, func(i Service) string { return i.Name }, serviceFault)
		},
	}
}

func serviceFault(s Service) health.Result {
	switch {
	case s.Failed:
		return fault(ReasonServiceFailed, health.RepairRestart, "the service failed")
	case !s.Active:
		return fault(ReasonServiceInactive, health.RepairRestart, "the service does not run")
	case increase(s.Restarts) > maxRestarts:
		return fault(ReasonServiceRestarts, health.RepairObserve, fmt.Sprintf("the service restarted %d times", s.Restarts.Increase))
	}
	return health.Result{}
}
