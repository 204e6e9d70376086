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
	KindMemory Kind = "memory" // an error of the host's memory (EDAC)
	KindCPU    Kind = "cpu"    // a machine check (MCE)
	KindNIC    Kind = "nic"    // an error of a network adapter
	KindDisk   Kind = "disk"   // an error of a disk or a file system
	KindPCI    Kind = "pci"    // a PCIe error (AER)
)

// Event is what one line of the kernel log says about a device.
type Event struct {
	Kind Kind `json:"kind"`
	// Code is the code of an XID or SXID, otherwise 0.
	Code int `json:"code,omitempty"`
	// Device is the bus address of a PCI device as "0000:3b:00", or another name, for example of a disk
	// or of a memory controller.
	Device string `json:"device,omitempty"`
	// Fatal is set if the line says that the error is not recoverable.
	Fatal bool `json:"fatal,omitempty"`
	// Message is the rest of the line: untrusted, printable ASCII, at most maxMessage characters.
	Message string `json:"message,omitempty"`
}
