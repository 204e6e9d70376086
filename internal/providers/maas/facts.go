package maas

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// hardware is what commissioning found in a machine.
type hardware struct {
	SystemID     string `json:"system_id"`
	Hostname     string `json:"hostname"`
	Architecture string `json:"architecture"` // for example amd64/generic
	CPUCount     int    `json:"cpu_count"`
	Memory       int64  `json:"memory"` // in MiB
	OS           string `json:"osystem"`
	Series       string `json:"distro_series"`
	Hardware     struct {
		CPUModel string `json:"cpu_model"`
	} `json:"hardware_info"`
	Disks []struct {
		Name  string `json:"name"`
		Size  int64  `json:"size"`
		Model string `json:"model"`
	} `json:"physicalblockdevice_set"`
	NICs []struct {
		Name      string `json:"name"`
		MAC       string `json:"mac_address"`
		Connected bool   `json:"link_connected"`
		Links     []struct {
			Address string `json:"ip_address"`
		} `json:"links"`
	} `json:"interface_set"`
}

// Facts returns what MAAS found when it commissioned the instance's machine. GPUs have no UUID
// and no memory: MAAS reads only their PCI identity. All texts are untrusted.
func (p *Provider) Facts(ctx context.Context, r machine.Ref) (inventory.Facts, error) {
	n, err := p.machineOf(ctx, r)
	if err != nil {
		return inventory.Facts{}, err
	}
	var h hardware
	err = p.client.call(ctx, request{what: "read machine " + n.SystemID, path: "machines/" + n.SystemID + "/", item: true},
		func(d *json.Decoder) error { return d.Decode(&h) })
	if err != nil {
		return inventory.Facts{}, err
	}
	gpus, err := p.gpus(ctx, n)
	if err != nil {
		return inventory.Facts{}, err
	}
	arch, _, _ := strings.Cut(h.Architecture, "/")
	f := inventory.Facts{Hostname: p.client.line(h.Hostname), OS: p.client.line(strings.TrimSpace(h.OS + " " + h.Series)),
		Arch: p.client.line(arch), CPUs: h.CPUCount, CPUModel: p.client.line(h.Hardware.CPUModel),
		MemoryBytes: h.Memory << 20, GPUs: gpus, CollectedAt: time.Now().UTC()}
	for _, d := range h.Disks {
		f.Disks = append(f.Disks, inventory.Disk{Name: p.client.line(d.Name), SizeBytes: d.Size, Model: p.client.line(d.Model)})
	}
	for _, i := range h.NICs {
		nic := inventory.NIC{Name: p.client.line(i.Name), MAC: p.client.line(i.MAC), Up: i.Connected}
		for _, l := range i.Links {
			if l.Address != "" {
				nic.Addresses = append(nic.Addresses, p.client.line(l.Address))
			}
		}
		f.NICs = append(f.NICs, nic)
	}
	return f.Bounded(), nil
}

// gpus lists the devices of type gpu (src/maasserver/api/nodedevices.py of canonical/maas).
func (p *Provider) gpus(ctx context.Context, n node) (gpus []inventory.GPU, err error) {
	type device struct {
		Vendor  string `json:"vendor_name"`
		Product string `json:"product_name"`
		Driver  string `json:"commissioning_driver"`
	}
	err = p.client.call(ctx, request{what: "read the devices of machine " + n.SystemID, path: "nodes/" + n.SystemID + "/devices/", item: true,
		query: values("hardware_type", "gpu")}, many(func(d device) error {
		gpus = append(gpus, inventory.GPU{Index: len(gpus), Model: p.client.line(d.Vendor + " " + d.Product), Driver: p.client.line(d.Driver)})
		return nil
	}))
	return gpus, err
}
