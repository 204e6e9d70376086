// Package device has what vendors say about the errors of their devices: a parser for lines of the
// kernel log, and tables from codes to repairs. It is data and pure functions. Start with Parse and
// Load.
package device

// Kind is the kind of a kernel event.
type Kind string

// The kinds.
const (
	KindXID    Kind = "xid"    // an error of an NVIDIA GPU
	KindSXID   Kind = "sxid"   // an error of an NVSwitch
	KindMemory Kind = "memory" // an error of the host's memory
	KindCPU    Kind = "cpu"    // a machine check
	KindPCI    Kind = "pci"    // a PCIe error
	KindNIC    Kind = "nic"    // an error of a network adapter
	KindDisk   Kind = "disk"   // an error of a disk or a file system
)

// The limits of an event's texts, in characters.
const (
	maxLine    = 4096
	maxMessage = 200
	maxDevice  = 64
)

// Event is what one line of the kernel log says about a device.
type Event struct {
	Kind Kind `json:"kind"`
	// Code is the code of an XID or SXID, otherwise 0.
	Code int `json:"code,omitempty"`
	// Device is the address of a PCI device as PCIAddress returns it, or another name, for example that
	// of a disk or of a memory controller. At most 64 printable ASCII characters.
	Device string `json:"device,omitempty"`
	// Fatal is set if the line says that the error could not be corrected.
	Fatal bool `json:"fatal,omitempty"`
	// Action is the recovery action that an XID 154 names.
	Action Action `json:"action,omitempty"`
	// Message is the rest of the line. It is untrusted: at most 200 printable ASCII characters.
	Message string `json:"message,omitempty"`
}
