package health

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/nvidia"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// maxLinks bounds the NVLinks of one GPU.
const maxLinks = 64

// links returns the NVLinks of each GPU by UUID. GPUs without NVLink have none; some drivers fail then.
func (r *gpuReader) links(ctx context.Context) (map[string][]host.Link, error) {
	state, _, err := nvidia.Run(ctx, r.programs, r.path, "nvlink", "-s")
	if err != nil && !strings.Contains(strings.ToLower(state), "all links are inactive") {
		return nil, err
	}
	all := map[string]map[int]host.Link{}
	parseLinks(state, all, func(l *host.Link, value string) { l.Up = !strings.Contains(value, "inactive") })
	if len(all) > 0 {
		counts, _, err := nvidia.Run(ctx, r.programs, r.path, "nvlink", "-e")
		if err != nil {
			return nil, err
		}
		parseLinks(counts, all, addErrors)
	}
	lists := map[string][]host.Link{}
	for id, links := range all {
		for _, n := range slices.Sorted(maps.Keys(links)) {
			lists[id] = append(lists[id], links[n])
		}
	}
	return lists, nil
}

// addErrors adds a line such as "Replay Errors: 3" to the count of a link. Newer drivers have more
// kinds; each is counted.
func addErrors(l *host.Link, value string) {
	name, count, ok := strings.Cut(value, ":")
	n := counter(strings.TrimSpace(count))
	if !ok || n == nil || !strings.Contains(name, "Error") && !strings.Contains(name, "Recovery") {
		return
	}
	if l.Errors == nil {
		l.Errors = &host.Counter{}
	}
	l.Errors.Total += n.Total
}

// parseLinks reads lines such as "GPU 0: NVIDIA H100 (UUID: GPU-…)" and "Link 3: 26.562 GB/s".
func parseLinks(out string, all map[string]map[int]host.Link, add func(l *host.Link, value string)) {
	gpuLine, linkLine := regexp.MustCompile(`^GPU \d+:.*\(UUID: (GPU-[0-9a-fA-F-]{1,60})\)`), regexp.MustCompile(`^Link (\d{1,2}): (.*)$`)
	id := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := gpuLine.FindStringSubmatch(line); m != nil {
			if id = m[1]; all[id] == nil && len(all) < maxGPUs {
				all[id] = map[int]host.Link{}
			}
			continue
		}
		m := linkLine.FindStringSubmatch(line)
		if m == nil || all[id] == nil {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil || n >= maxLinks {
			continue
		}
		l := all[id][n]
		l.ID = n
		add(&l, m[2])
		all[id][n] = l
	}
}
