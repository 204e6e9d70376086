package health

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxPorts bounds the ports of a sample and of the state.
const maxPorts = 64

// readInfiniBand is the source of host.InputInfiniBand: the ports of RDMA adapters, as the kernel's document
// ABI/stable/sysfs-class-infiniband describes them.
func (m *Monitor) readInfiniBand(context.Context) (reading, error) {
	root := m.path("/sys/class/infiniband")
	adapters, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // a host without RDMA
	}
	if err != nil {
		return nil, err
	}
	var list []host.Port
	for _, adapter := range adapters {
		ports, err := os.ReadDir(filepath.Join(root, adapter.Name(), "ports"))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // an adapter can leave while it is read
			return nil, err
		}
		for _, port := range ports {
			name := adapter.Name() + "/" + port.Name()
			if len(list) == maxPorts || !text.IsToken(name, health.MaxComponent, "-_.:/") {
				continue
			}
			p, err := readPort(filepath.Join(root, adapter.Name(), "ports", port.Name()), name)
			if err != nil {
				return nil, err
			}
			list = append(list, p)
		}
	}
	return func(s *host.Sample) { s.Ports = list }, nil
}

// readPort reads the folder of one port. Its state is, for example, "4: ACTIVE".
func readPort(folder, name string) (host.Port, error) {
	raw, err := os.ReadFile(filepath.Join(folder, "state"))
	if err != nil {
		return host.Port{}, err
	}
	_, state, _ := strings.Cut(strings.TrimSpace(string(raw)), ": ")
	return host.Port{
		Name: name, State: text.Line(state, 32),
		LinkDowned:   portCounter(filepath.Join(folder, "counters", "link_downed")),
		SymbolErrors: portCounter(filepath.Join(folder, "counters", "symbol_error")),
	}, nil
}

// portCounter reads a counter, nil if the adapter does not have it.
func portCounter(path string) *host.Counter {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	total, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return nil
	}
	return &host.Counter{Total: total}
}

// learnPorts keeps the ports that are active, and adds those of the sample that were and are missing.
func (s *state) learnPorts(sample *host.Sample) {
	listed := map[string]bool{}
	for i := range sample.Ports {
		p := &sample.Ports[i]
		if p.Active() && len(s.Ports) < maxPorts {
			s.Ports[p.Name] = true
		}
		p.WasActive, listed[p.Name] = s.Ports[p.Name], true
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ports)) {
		if !listed[name] {
			sample.Ports = append(sample.Ports, host.Port{Name: name, WasActive: true, Missing: true})
		}
	}
}
