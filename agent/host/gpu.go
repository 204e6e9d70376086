package host

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/nvidia"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// Limits of the output of nvidia-smi.
const (
	smiTimeout = 20 * time.Second
	smiMaxGPUs = 256
)

// smiQuery is the column list that parseSMI expects.
const smiQuery = "index,uuid,name,memory.total,driver_version,serial"

// nvidiaSMI lists GPUs with NVIDIA's own command.
type nvidiaSMI struct {
	path     string // of nvidia-smi; looked up in PATH when empty
	programs command.Runner
}

// list returns the host's GPUs: none where the command does not exist, and an
// error where it exists and fails, because a GPU node whose driver is broken is
// not a node without GPUs.
func (n nvidiaSMI) list(ctx context.Context) ([]inventory.GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	defer cancel()
	out, found, err := nvidia.Query(ctx, n.programs, n.path, "--query-gpu="+smiQuery)
	if err != nil {
		return nil, err
	}
	if !found {
		return []inventory.GPU{}, nil
	}
	gpus, err := parseSMI([]byte(out))
	if err != nil {
		return nil, schema.Wrap(schema.KindTaskFailed, err, "unexpected output of nvidia-smi")
	}
	return gpus, nil
}

// parseSMI reads CSV without header and units, strictly: the six columns of
// smiQuery on every line. "[N/A]" and its like stand for a value the device
// does not have, which only driver and serial may lack.
func parseSMI(out []byte) ([]inventory.GPU, error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.FieldsPerRecord, r.TrimLeadingSpace = strings.Count(smiQuery, ",")+1, true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) > smiMaxGPUs {
		return nil, fmt.Errorf("more than %d GPUs", smiMaxGPUs)
	}
	gpus := []inventory.GPU{}
	for _, row := range rows {
		g, err := parseGPU(row)
		if err != nil {
			return nil, fmt.Errorf("gpu %d: %w", len(gpus), err)
		}
		if slices.ContainsFunc(gpus, func(o inventory.GPU) bool { return o.Index == g.Index || o.UUID == g.UUID }) {
			return nil, fmt.Errorf("gpu %d is listed twice", g.Index)
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

func parseGPU(row []string) (inventory.GPU, error) {
	for i, v := range row {
		if row[i] = strings.TrimSpace(v); i > 1 && absent(row[i]) {
			row[i] = ""
		}
	}
	index, err := strconv.Atoi(row[0])
	if err != nil || index < 0 {
		return inventory.GPU{}, fmt.Errorf("index %q", text.Truncate(row[0]))
	}
	if !strings.HasPrefix(row[1], "GPU-") {
		return inventory.GPU{}, fmt.Errorf("uuid %q", text.Truncate(row[1]))
	}
	if row[2] == "" {
		return inventory.GPU{}, fmt.Errorf("name %q", text.Truncate(row[2]))
	}
	mib, err := strconv.ParseInt(row[3], 10, 64)
	if err != nil || mib <= 0 || mib > 1<<30 {
		return inventory.GPU{}, fmt.Errorf("memory %q", text.Truncate(row[3]))
	}
	return inventory.GPU{Index: index, UUID: row[1], Model: row[2], MemoryBytes: mib << 20, Driver: row[4], Serial: row[5]}, nil
}

// absent reports whether nvidia-smi printed one of its texts for a missing value.
func absent(v string) bool {
	return v == "" || v == "0" || strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") || v == "N/A"
}
