package host

import (
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of host_infiniband.
const (
	ReasonPortsActive  = "PortsActive"
	ReasonPortMissing  = "PortMissing"
	ReasonPortDown     = "PortDown"
	ReasonLinkDowned   = "LinkDowned"
	ReasonSymbolErrors = "SymbolErrors"
)

// maxSymbolErrors is how many symbol errors of a port are normal within Window: NVSentinel counts more than
// 120 within an hour as fatal.
const maxSymbolErrors = 120

// Port is a port of an RDMA adapter, as /sys/class/infiniband shows it.
type Port struct {
	Name  string // adapter and number, for example "mlx5_0/1"
	State string // for example "ACTIVE"
	// Missing is set for a port that was active before and that the kernel lists no longer.
	Missing bool
	// WasActive is set if the port was active before. Ports without a cable never are.
	WasActive bool
	// LinkDowned counts the times that the link of a port failed, SymbolErrors the errors on its lanes. The
	// kernel's counters stop at their highest values, 255 and 65535 on old adapters.
	LinkDowned, SymbolErrors *Counter
}

// Active reports whether the port carries data.
func (p Port) Active() bool { return p.State == "ACTIVE" || p.State == "ACTIVE_DEFER" }

// hostInfiniBand reports ports that were active and are not, and links with errors. Cables and switches are as
// likely a cause as the adapter, and a port that is missing may be in the network namespace of a pod, so no fault
// has a repair of its own: the policy can give it one.
func hostInfiniBand() health.Checker[Sample] {
	return checker{
		name: "host_infiniband", threshold: 10 * time.Minute, input: InputInfiniBand, healthy: ReasonPortsActive,
		applies: func(s Sample) bool { return len(s.Ports) > 0 },
		faults: func(s Sample) []health.Result {
			return each(s.Ports, func(i Port) string { return i.Name }, portFault)
		},
	}
}

func portFault(p Port) health.Result {
	switch {
	case p.Missing:
		return fault(ReasonPortMissing, health.RepairObserve, "the kernel does not list the port, which was active before")
	case p.WasActive && !p.Active():
		return fault(ReasonPortDown, health.RepairObserve, "the port was active before, and its state is "+p.State)
	case increase(p.LinkDowned) > 0:
		return fault(ReasonLinkDowned, health.RepairObserve, fmt.Sprintf("the link failed %d times", p.LinkDowned.Increase))
	case increase(p.SymbolErrors) > maxSymbolErrors:
		return fault(ReasonSymbolErrors, health.RepairObserve, fmt.Sprintf("%d new symbol errors", p.SymbolErrors.Increase))
	}
	return health.Result{}
}
