package inventory

import (
	"encoding/json"
	"time"
)

// maxFactsBytes bounds the facts of a node, as JSON. A host with 200 disks and 200 network
// interfaces has less than that.
const maxFactsBytes = 64 << 10

// Facts is the output of facts.collect: the properties of the host.
type Facts struct {
	Hostname    string    `json:"hostname"`
	OS          string    `json:"os"` // PRETTY_NAME of os-release, or the platform's name
	Kernel      string    `json:"kernel"`
	Arch        string    `json:"arch"`
	BootID      string    `json:"boot_id"`
	CPUs        int       `json:"cpus"`
	CPUModel    string    `json:"cpu_model,omitempty"`
	MemoryBytes int64     `json:"memory_bytes"`
	Disks       []Disk    `json:"disks"`
	NICs        []NIC     `json:"nics"`
	GPUs        []GPU     `json:"gpus"`
	CollectedAt time.Time `json:"collected_at"`
}

// Bounded returns facts of at most 64 KiB as JSON. It omits the last disks, NICs and GPUs
// of larger facts, and their texts if that is not enough.
func (f Facts) Bounded() Facts {
	for f.size() > maxFactsBytes {
		if len(f.Disks)+len(f.NICs)+len(f.GPUs) == 0 {
			return Facts{CPUs: f.CPUs, MemoryBytes: f.MemoryBytes, CollectedAt: f.CollectedAt}
		}
		f.Disks, f.NICs, f.GPUs = f.Disks[:len(f.Disks)/2], f.NICs[:len(f.NICs)/2], f.GPUs[:len(f.GPUs)/2]
	}
	return f
}

func (f Facts) size() int {
	text, err := json.Marshal(f)
	if err != nil {
		return maxFactsBytes + 1
	}
	return len(text)
}

// Disk is a block device, or a mounted file system where block devices cannot
// be listed.
type Disk struct {
	Name      string `json:"name"`
	SizeBytes int64  `json:"size_bytes"`
	Model     string `json:"model,omitempty"`
}

// NIC is a network interface other than loopback.
type NIC struct {
	Name      string   `json:"name"`
	MAC       string   `json:"mac,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Up        bool     `json:"up"`
}

// GPU is one device as nvidia-smi lists it.
type GPU struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Model       string `json:"model"`
	MemoryBytes int64  `json:"memory_bytes"`
	Driver      string `json:"driver,omitempty"`
	Serial      string `json:"serial,omitempty"`
}

// ProbeReport is the output of node.probe.
type ProbeReport struct {
	Healthy bool         `json:"healthy"`
	Checks  []ProbeCheck `json:"checks"`
	BootID  string       `json:"boot_id"`
}

// ProbeCheck is one check of a probe.
type ProbeCheck struct {
	Name   string `json:"name"` // disk, memory, gpu, clock
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Failed returns the details of the checks that failed.
func (r ProbeReport) Failed() []string {
	var out []string
	for _, c := range r.Checks {
		if !c.OK {
			out = append(out, c.Name+": "+c.Detail)
		}
	}
	return out
}
