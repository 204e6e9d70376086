package workload

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/nvidia"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Limits of the list of GPU processes.
const (
	gpuTimeout      = 8 * time.Second // below listTimeout
	maxGPUProcesses = 4096            // lines; a process has one for each of its GPUs
)

// gpuColumns is the query that parseGPUProcesses expects.
const gpuColumns = "--query-compute-apps=pid,process_name,used_memory"

// GPUs lists the processes that use the node's GPUs, whatever started them. It returns
// although nvidia-smi does not.
type GPUs struct{ list *Monitor }

// NewGPUs makes the list of GPU processes that nvidia-smi returns, at path or in PATH.
func NewGPUs(path string, now func() time.Time, log *slog.Logger) *GPUs {
	m := NewMonitor(gpuLister{path: path}, now, func() {}, log)
	m.name = nvidia.Default
	return &GPUs{m}
}

// Processes returns one workload of kind task.KindGPUProcess for each process, ordered by
// process ID, and none on a machine without GPUs. If nvidia-smi fails, it returns one of
// task.KindUnknown, whose name says why.
func (g *GPUs) Processes(ctx context.Context) []task.Workload {
	limited, cancel := context.WithTimeout(ctx, gpuTimeout)
	defer cancel()
	list, err := g.list.List(limited)
	if err != nil {
		return []task.Workload{{Name: "GPU processes: " + text.Truncate(err.Error()), Kind: task.KindUnknown}}
	}
	return list
}

// gpuLister is a driver that only lists.
type gpuLister struct {
	Unmanaged
	path string
}

// List implements Driver.
func (g gpuLister) List(ctx context.Context) ([]task.Workload, error) {
	out, found, err := nvidia.Query(ctx, command.Runner{}, g.path, gpuColumns)
	if err != nil || !found {
		return nil, err
	}
	return parseGPUProcesses(out)
}

// parseGPUProcesses reads a line of three columns for each process and GPU, strictly. The
// name of a process may contain commas. The memory may be absent, as with MIG, and is not
// part of the result, because it changes all the time.
func parseGPUProcesses(out string) ([]task.Workload, error) {
	names := map[int]string{}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) > maxGPUProcesses || len(out) >= nvidia.MaxBytes {
		return nil, fmt.Errorf("nvidia-smi lists more than %d GPU processes", maxGPUProcesses)
	}
	for _, line := range lines {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		first, last := strings.Index(line, ","), strings.LastIndex(line, ",")
		if first == last {
			return nil, fmt.Errorf("unexpected output of nvidia-smi: %q", text.Truncate(line))
		}
		pid, err := strconv.Atoi(line[:first])
		memory := strings.TrimSpace(line[last+1:])
		if _, bad := strconv.ParseUint(memory, 10, 63); err != nil || pid <= 0 || bad != nil && !strings.HasPrefix(memory, "[") {
			return nil, fmt.Errorf("unexpected output of nvidia-smi: %q", text.Truncate(line))
		}
		names[pid] = strings.TrimSpace(line[first+1 : last])
	}
	list := make([]task.Workload, 0, len(names))
	for _, pid := range slices.Sorted(maps.Keys(names)) {
		list = append(list, task.Workload{Kind: task.KindGPUProcess,
			Name: text.Printable(fmt.Sprintf("pid %d %s", pid, names[pid]), wire.MaxWorkloadName)})
	}
	return list, nil
}
