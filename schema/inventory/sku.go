package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// The workload drivers of every agent.
const (
	DriverNone       = "none"
	DriverSystemd    = "systemd"
	DriverDocker     = "docker"
	DriverKubernetes = "kubernetes"
)

// Drivers returns the workload drivers of every agent. A build of your own may have more.
func Drivers() []string { return []string{DriverSystemd, DriverDocker, DriverKubernetes, DriverNone} }

// maxDrivers bounds the bytes of a list of workload drivers.
const maxDrivers = 32

// ValidDrivers reports whether s is the name of a workload driver, or several different
// names separated by commas, in at most 32 bytes. A name has letters, digits, _ and -.
// DriverNone is valid only without others.
func ValidDrivers(s string) bool {
	names := strings.Split(s, ",")
	for i, name := range names {
		if !text.IsToken(name, maxDrivers, "_-") || slices.Contains(names[:i], name) || name == DriverNone && len(names) > 1 {
			return false
		}
	}
	return len(s) <= maxDrivers
}

// SKU is an entry of the catalog a registration must refer to.
type SKU struct {
	Name           string `json:"name"`
	GPUModel       string `json:"gpu_model,omitempty"` // substring of the device's model, "" for none
	MaxGPUs        int    `json:"max_gpus"`
	MinCPUs        int    `json:"min_cpus"`
	MinMemoryBytes int64  `json:"min_memory_bytes"`
	WorkloadDriver string `json:"workload_driver,omitempty"` // default of a registration, "" for none
	Active         bool   `json:"active"`
}

// NewSKU is the body of POST /api/v1/admin/skus.
type NewSKU struct {
	Name           string `json:"name"`
	GPUModel       string `json:"gpu_model,omitempty"`
	MaxGPUs        int    `json:"max_gpus,omitempty"`
	MinCPUs        int    `json:"min_cpus"`
	MinMemoryBytes int64  `json:"min_memory_bytes,omitempty"`
	WorkloadDriver string `json:"workload_driver,omitempty"`
	Reason         string `json:"reason,omitempty"`
}

// SKUDeactivation is the body of POST /api/v1/admin/skus/{sku}/deactivate.
type SKUDeactivation struct {
	Reason string `json:"reason,omitempty"`
}

// SKUList is the response to GET /api/v1/admin/skus.
type SKUList struct {
	SKUs          []SKU  `json:"skus"`
	NextPageToken string `json:"next_page_token,omitempty"`
}

// CheckRegistration reports why a node with gpus devices cannot be registered
// under the SKU, as KindInvalidRequest.
func (s SKU) CheckRegistration(gpus int) error {
	if !s.Active {
		return schema.NewError(schema.KindInvalidRequest, "SKU %q is not active", s.Name).
			WithReason("sku_inactive").WithNext("gpuaas sku list --active")
	}
	if s.MaxGPUs == 0 && gpus != 0 {
		return schema.NewError(schema.KindInvalidRequest, "SKU %q has no GPUs, so a node has 0 and not %d", s.Name, gpus).
			WithReason("sku_mismatch").WithNext("gpuaas sku show " + s.Name)
	}
	if gpus < 0 || gpus > s.MaxGPUs {
		return schema.NewError(schema.KindInvalidRequest, "SKU %q allows 0 to %d GPUs, not %d", s.Name, s.MaxGPUs, gpus).
			WithReason("sku_mismatch").WithNext("gpuaas sku show " + s.Name)
	}
	return nil
}

// Mismatches compares the facts of the host with the SKU and the registered number
// of GPUs. It returns nothing if they match.
func (s SKU) Mismatches(gpusTotal int, f Facts) []string {
	var out []string
	if f.CPUs < s.MinCPUs {
		out = append(out, fmt.Sprintf("%d CPUs, the SKU needs %d", f.CPUs, s.MinCPUs))
	}
	if f.MemoryBytes < s.MinMemoryBytes {
		out = append(out, fmt.Sprintf("%d MiB memory, the SKU needs %d", f.MemoryBytes>>20, s.MinMemoryBytes>>20))
	}
	if len(f.GPUs) != gpusTotal {
		out = append(out, fmt.Sprintf("%d GPUs found, %d registered", len(f.GPUs), gpusTotal))
	}
	for _, g := range f.GPUs {
		if !strings.Contains(strings.ToLower(g.Model), strings.ToLower(s.GPUModel)) {
			out = append(out, fmt.Sprintf("GPU %d is a %s, the SKU needs %s", g.Index, g.Model, s.GPUModel))
		}
	}
	return out
}
