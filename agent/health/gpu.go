package health

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/nvidia"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/health/device"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// column is a column of nvidia-smi --query-gpu. Each version of the driver has others.
type column struct {
	names []string // the present name first, then those of earlier drivers
	set   func(g *host.GPU, value string)
}

// columns returns what a sample reads of each GPU. The first three must exist.
func columns() []column {
	return []column{
		{[]string{"index"}, func(g *host.GPU, v string) { g.Index, _ = strconv.Atoi(v) }},
		{[]string{"uuid"}, func(g *host.GPU, v string) { g.UUID = v }},
		{[]string{"pci.bus_id"}, func(g *host.GPU, v string) { g.PCI = v }},
		{[]string{"name"}, func(g *host.GPU, v string) { g.Model = v }},
		{[]string{"gpu_recovery_action"}, func(g *host.GPU, v string) { g.RecoveryAction = device.ParseAction(v) }},
		{[]string{"ecc.errors.uncorrected.volatile.total"}, func(g *host.GPU, v string) { g.ECCVolatile = counter(v) }},
		{[]string{"ecc.errors.uncorrected.aggregate.total"}, func(g *host.GPU, v string) { g.ECCAggregate = counter(v) }},
		{[]string{"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"}, func(g *host.GPU, v string) { g.SRAMThreshold = flag(v) }},
		{[]string{"remapped_rows.pending"}, func(g *host.GPU, v string) { g.RemapPending = flag(v) }},
		{[]string{"remapped_rows.failure"}, func(g *host.GPU, v string) { g.RemapFailure = flag(v) }},
		{[]string{"remapped_rows.correctable"}, func(g *host.GPU, v string) { g.RemapCorrectable = counter(v) }},
		{[]string{"remapped_rows.uncorrectable"}, func(g *host.GPU, v string) { g.RemapUncorrectable = counter(v) }},
		{[]string{"retired_pages.double_bit.count", "retired_pages.dbe"}, func(g *host.GPU, v string) { g.RetiredPages = counter(v) }},
		{[]string{"retired_pages.pending"}, func(g *host.GPU, v string) { g.RetiredPending = flag(v) }},
		{[]string{"temperature.gpu"}, func(g *host.GPU, v string) { g.TemperatureC = number(v) }},
		{[]string{"clocks_event_reasons.active", "clocks_throttle_reasons.active"}, func(g *host.GPU, v string) { g.Throttle = throttle(v) }},
		{[]string{"fan.speed"}, func(g *host.GPU, v string) { g.FanPercent, g.FanFailed = number(v), isError(v) }},
	}
}

// identity is the number of columns that identify a GPU.
const identity = 3

// gpuReader reads GPUs with nvidia-smi. Its calls must not overlap.
type gpuReader struct {
	path     string
	programs command.Runner

	mu sync.Mutex
	// lacks are the names of columns that this driver does not have.
	lacks []string
}

// used returns the columns that the driver has, with their names.
func (r *gpuReader) used() (list []column, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range columns() {
		i := slices.IndexFunc(c.names, func(n string) bool { return !slices.Contains(r.lacks, n) })
		if i >= 0 {
			list, names = append(list, c), append(names, c.names[i])
		}
	}
	return list, names
}

// errNoColumn means that another query follows without a column that the driver does not have.
var errNoColumn = errors.New("the driver does not have a column")

// read returns the GPUs; found is false on a host without GPUs and driver.
func (r *gpuReader) read(ctx context.Context) (gpus []host.GPU, found bool, err error) {
	for range 2 * len(columns()) {
		gpus, found, err = r.query(ctx)
		if !errors.Is(err, errNoColumn) {
			return gpus, found, err
		}
	}
	return nil, true, err
}

func (r *gpuReader) query(ctx context.Context) (gpus []host.GPU, found bool, err error) {
	list, names := r.used()
	out, found, err := nvidia.Run(ctx, r.programs, r.path, "--query-gpu="+strings.Join(names, ","), "--format=csv,noheader,nounits")
	if !found {
		return nil, false, nil
	}
	if err != nil && r.refused(out, names) {
		return nil, true, errNoColumn
	}
	if len(out) >= nvidia.MaxBytes {
		return nil, true, errors.New("nvidia-smi prints too much")
	}
	gpus, parseErr := parseGPUs(out, list)
	if len(gpus) > 0 {
		return gpus, true, nil // nvidia-smi fails if one of the GPUs is lost
	}
	if strings.TrimSpace(out) == "" && err == nil || strings.Contains(out, "No devices were found") {
		return []host.GPU{}, true, nil
	}
	return nil, true, errors.Join(err, parseErr)
}

// refused reports whether nvidia-smi refused one of the columns, and remembers which.
func (r *gpuReader) refused(out string, names []string) bool {
	m := regexp.MustCompile(`Field "([A-Za-z0-9_.]+)" is not a valid field to query`).FindStringSubmatch(out)
	if m == nil || !slices.Contains(names[identity:], m[1]) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lacks = append(r.lacks, m[1])
	return true
}

// parseGPUs reads a line for each GPU. A line about a GPU that cannot be read makes a lost GPU; other
// lines are ignored. An error is that no line could be read.
func parseGPUs(out string, list []column) (gpus []host.GPU, err error) {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		values := strings.Split(line, ",")
		g, ok := host.GPU{}, false
		if len(values) == len(list) {
			g, ok = parseGPU(values, list)
		} else if address := device.LostGPU(line); address != "" {
			g, ok = host.GPU{Index: len(gpus), PCI: address, Lost: true}, true
		}
		same := func(o host.GPU) bool { return device.PCIAddress(o.PCI) == device.PCIAddress(g.PCI) && o.PCI != "" }
		if ok && len(gpus) < maxGPUs && !slices.ContainsFunc(gpus, same) {
			gpus = append(gpus, g)
		}
	}
	if len(gpus) == 0 && strings.TrimSpace(out) != "" {
		err = fmt.Errorf("unexpected output of nvidia-smi: %s", text.Printable(text.Truncate(strings.TrimSpace(out)), 200))
	}
	return gpus, err
}

func parseGPU(values []string, list []column) (g host.GPU, ok bool) {
	for i := range values {
		values[i] = strings.TrimSpace(values[i])
	}
	if _, err := strconv.Atoi(values[0]); err != nil {
		return g, false
	}
	for i, c := range list {
		switch {
		case i < identity || !isError(values[i]):
			c.set(&g, values[i])
		case strings.Contains(values[i], "GPU is lost"):
			g.Lost = true
		case strings.Contains(values[i], "requires reset"): // in place of every figure
			g.RecoveryAction = device.ActionReset
		case c.names[0] == "fan.speed":
			c.set(&g, values[i])
		}
	}
	if !regexp.MustCompile(`^(GPU|MIG)-[0-9A-Za-z/-]{1,60}$`).MatchString(g.UUID) {
		g.UUID, g.Lost = "", true
	}
	if device.PCIAddress(g.PCI) == "" {
		g.PCI = ""
	}
	g.Model = text.Printable(g.Model, 100)
	return g, g.UUID != "" || g.PCI != ""
}

// isError reports whether nvidia-smi printed a text instead of a value that the device has.
func isError(v string) bool {
	for _, sign := range []string{"Unknown Error", "ERR!", "GPU is lost", "GPU requires reset"} {
		if strings.Contains(v, sign) {
			return true
		}
	}
	return false
}

// counter reads a count, nil if there is none.
func counter(v string) *host.Counter {
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		return nil
	}
	return &host.Counter{Total: n}
}

// number reads a small number, nil if there is none.
func number(v string) *int {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return nil
	}
	value := int(n) //nolint:gosec // 16 bits
	return &value
}

// flag reads Yes or No in one of its forms, nil if there is none.
func flag(v string) *bool {
	switch strings.ToLower(v) {
	case "yes", "true", "1":
		return new(true)
	case "no", "false", "0":
		return new(false)
	}
	return nil
}

// throttle reads the bits of the reasons for reduced clocks, as NVML numbers them.
func throttle(v string) []string {
	bits, err := strconv.ParseUint(v, 0, 64)
	if err != nil {
		return nil
	}
	names := []string{
		"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
		"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting",
	}
	list := []string{}
	for i, name := range names {
		if bits&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// readGPUs is the source of host.InputGPUs.
func (m *Monitor) readGPUs(ctx context.Context) (reading, error) {
	gpus, found, err := m.gpus.read(ctx)
	if err != nil || !found {
		return nil, err
	}
	links, err := m.gpus.links(ctx)
	if err != nil && (ctx.Err() != nil || m.hadLinks()) {
		return nil, err // not "all links are down"
	}
	for i := range gpus {
		gpus[i].Links = links[gpus[i].UUID]
	}
	return func(s *host.Sample) { s.GPUs = gpus }, nil
}

// hadLinks reports whether NVLinks were up before.
func (m *Monitor) hadLinks() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.state.Links) > 0
}
