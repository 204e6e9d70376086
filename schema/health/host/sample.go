// Package host checks the sample that a node's agent takes of its host: GPUs, kernel events, disks,
// clock, memory and services. It is pure: the agent reads the host, and this package says what the
// figures mean. Start with Sample and Checkers.
package host

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/health/device"
)

// Input is one source of a sample. An input that could not be read makes its checks unknown.
type Input string

// The inputs.
const (
	InputGPUs     Input = "gpus"     // nvidia-smi
	InputKernel   Input = "kernel"   // the kernel log
	InputDisks    Input = "disks"    // file systems and block devices
	InputClock    Input = "clock"    // the state of the time synchronization
	InputMemory   Input = "memory"   // /proc/meminfo
	InputServices Input = "services" // units of systemd
	// InputInfiniBand is the ports of RDMA adapters, in sysfs.
	InputInfiniBand Input = "infiniband"
)

// Sample is what an agent read of its host at one time. Pointers and Counters are nil if the driver
// or the device does not have the figure.
type Sample struct {
	At       time.Time
	BootID   string
	BootedAt time.Time // zero if unknown
	// Missing has, for each input that could not be read, why. An input that the host does not have,
	// such as nvidia-smi on a host without GPUs, is neither missing nor present.
	Missing map[Input]string

	// ExpectedGPUs is the number of GPUs of the node's SKU, 0 if it is not known.
	ExpectedGPUs int
	// Driver is the version of the NVIDIA driver, for example "550.90.07".
	Driver string
	GPUs   []GPU
	// UUIDs has the UUID of each GPU that the agent has seen, by device.PCIAddress of its bus, also
	// of those that nvidia-smi no longer lists. It names the GPU of an event while nvidia-smi hangs.
	UUIDs map[string]string
	// Events are the kernel events of this and earlier boots that the agent keeps, oldest first.
	Events []Event
	Disks  []Disk
	// Clock is nil if the host has no time synchronization.
	Clock    *Clock
	Memory   *Memory
	Services []Service
	// Ports are those of RDMA adapters, and those that were active before and are missing.
	Ports []Port
}

// Event is a kernel event with its time and boot. At is the time of the log's record.
type Event struct {
	device.Event
	At     time.Time `json:"at"`
	BootID string    `json:"boot_id"`
}

// GPU is one device as nvidia-smi shows it.
type GPU struct {
	Index int
	UUID  string
	Model string
	PCI   string // bus address, in any form that device.PCIAddress reads
	// Lost is set if nvidia-smi lists the GPU but cannot read it ("GPU is lost", "Unknown Error").
	Lost bool
	// ResetAt is when the agent last reset the GPU, zero if it did not since the boot. Earlier events
	// of the GPU have ended.
	ResetAt time.Time

	// RecoveryAction is device.ParseAction of gpu_recovery_action; empty if the driver does not have it.
	RecoveryAction device.Action

	// Uncorrectable ECC errors: since the driver's start, and of the device's lifetime.
	ECCVolatile, ECCAggregate *Counter
	// SRAMThreshold is ecc.errors.uncorrected.aggregate.sram.thresholdExceeded.
	SRAMThreshold *bool

	// Row remapping, of GPUs from Ampere on.
	RemapPending, RemapFailure           *bool
	RemapCorrectable, RemapUncorrectable *Counter
	// Page retirement, of earlier GPUs.
	RetiredPages   *Counter // by double bit errors
	RetiredPending *bool

	// Links are the NVLinks. ExpectedLinks is how many the model has, 0 if it is not known.
	Links         []Link
	ExpectedLinks int

	TemperatureC *int
	// SlowdownC is the temperature at which the GPU slows down.
	SlowdownC *int
	// Throttle has the active reasons for reduced clocks, as nvidia-smi names its columns after
	// "clocks_event_reasons." or "clocks_throttle_reasons.", for example "hw_thermal_slowdown".
	Throttle []string
	// FanPercent is nil for devices without an own fan. FanFailed is set if nvidia-smi reports an error
	// in its place.
	FanPercent *int
	FanFailed  bool
}

// Link is one NVLink of a GPU.
type Link struct {
	ID int
	Up bool
	// Errors counts replay, recovery and CRC errors.
	Errors *Counter
}

// Counter is a counter of a device. Checks look at the increase, because a lifetime value says
// nothing about now. History fills Increase.
type Counter struct {
	Total    uint64
	Increase uint64 // within the last one to two Windows
}

// Disk is a file system or a block device.
type Disk struct {
	Name string // mount point or device
	// Bytes of a file system, 0 for a block device.
	TotalBytes, FreeBytes int64
	// ReadOnly is set if a file system that fstab mounts writable is read-only.
	ReadOnly bool
	// Errors counts I/O errors.
	Errors *Counter
}

// Clock is the state of the time synchronization.
type Clock struct {
	Synchronized bool
	Offset       time.Duration // of the host's clock to its source; its sign has no meaning here
}

// Memory is the memory of the host.
type Memory struct {
	TotalBytes, AvailableBytes int64
	// ExpectedBytes is the memory of the node's SKU, 0 if it is not known.
	ExpectedBytes int64
}

// Service is a unit of systemd that the node needs, if it is installed.
type Service struct {
	Name     string // for example "nvidia-fabricmanager"
	Active   bool
	Failed   bool
	Restarts *Counter
}
