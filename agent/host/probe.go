package host

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
)

// Minimum resources of a healthy node.
const (
	minFreeDisk    = 256 << 20
	minFreeMemory  = 128 << 20
	maxClockOffset = time.Minute
)

// Probe runs node.probe, which checks whether the machine can run tasks.
type Probe struct {
	Host     Host
	StateDir string
}

// Run checks the machine. offset is the node's clock minus the server's, nil when
// it is unknown. A check that fails is part of the report and no error.
func (p Probe) Run(ctx context.Context, offset *time.Duration) (any, error) {
	r := inventory.ProbeReport{Healthy: true, BootID: BootID(p.Host.root)}
	r.Checks = []inventory.ProbeCheck{p.diskSpace(), p.memory(), p.gpus(ctx), p.clock(offset)}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // a check that was canceled did not fail
	}
	for _, c := range r.Checks {
		r.Healthy = r.Healthy && c.OK
	}
	return r, nil
}

func (p Probe) diskSpace() inventory.ProbeCheck {
	s, err := spaceOf(p.StateDir)
	if err != nil {
		return inventory.ProbeCheck{Name: "disk", Detail: err.Error()}
	}
	return inventory.ProbeCheck{Name: "disk", OK: s.free >= minFreeDisk,
		Detail: fmt.Sprintf("%s of %s free at %s, want %s", size(s.free), size(s.total), p.StateDir, size(minFreeDisk))}
}

func (p Probe) memory() inventory.ProbeCheck {
	m := p.Host.memory()
	if m.free == 0 {
		return inventory.ProbeCheck{Name: "memory", OK: true, Detail: "available memory is unknown on this platform"}
	}
	return inventory.ProbeCheck{Name: "memory", OK: m.free >= minFreeMemory,
		Detail: fmt.Sprintf("%s of %s available, want %s", size(m.free), size(m.total), size(minFreeMemory))}
}

func (p Probe) gpus(ctx context.Context) inventory.ProbeCheck {
	c := inventory.ProbeCheck{Name: "gpu"}
	gpus, err := p.Host.smi.list(ctx)
	devices := p.Host.nvidiaDevices()
	switch {
	case err != nil:
		c.Detail = err.Error()
	case len(gpus) == 0 && devices > 0:
		c.Detail = fmt.Sprintf("%d NVIDIA devices on the bus and no GPU from nvidia-smi: the driver is missing", devices)
	default:
		c.OK, c.Detail = true, fmt.Sprintf("%d GPUs", len(gpus))
	}
	return c
}

func (p Probe) clock(offset *time.Duration) inventory.ProbeCheck {
	if offset == nil {
		return inventory.ProbeCheck{Name: "clock", OK: true, Detail: "the server's time is not known"}
	}
	return inventory.ProbeCheck{Name: "clock", OK: offset.Abs() <= maxClockOffset,
		Detail: fmt.Sprintf("%s from the server's clock, at most %s", offset.Round(time.Millisecond), maxClockOffset)}
}

// nvidiaDevices counts NVIDIA display and 3D controllers on the PCI bus.
func (h Host) nvidiaDevices() int {
	n := 0
	dirs, _ := os.ReadDir(h.file("/sys/bus/pci/devices")) // absent outside Linux
	for _, d := range dirs {
		dir := h.file("/sys/bus/pci/devices/" + d.Name())
		if readLine(dir+"/vendor") == "0x10de" && strings.HasPrefix(readLine(dir+"/class"), "0x03") {
			n++
		}
	}
	return n
}
