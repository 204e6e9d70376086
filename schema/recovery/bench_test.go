package recovery_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// BenchmarkDecide decides about 10,000 nodes, 300 of which have a fault. The metric x-sort compares it
// with a copy of the facts that is sorted by host.
func BenchmarkDecide(b *testing.B) {
	nodes := make([]recovery.Node, 0, 10_000)
	for i := range cap(nodes) {
		n := node(i)
		if i%33 == 0 && len(nodes) < 33*300 {
			n = with(n, condition("node_ready", "KubeletNotReady", health.RepairReboot, now().Add(-time.Duration(i)*time.Minute)))
		}
		nodes = append(nodes, n)
	}
	f := fleet(now(), len(nodes), nodes...)
	var decide, sorted time.Duration
	for b.Loop() {
		begin := time.Now()
		result := recovery.Decide(armed(), f)
		decide += time.Since(begin)
		if len(result.Decisions) != len(nodes) {
			b.Fatal("a decision is missing")
		}
		begin = time.Now()
		plain := slices.Clone(f.Nodes)
		for i := range plain {
			plain[i].Conditions = slices.Clone(plain[i].Conditions)
		}
		slices.SortFunc(plain, func(a, b recovery.Node) int { return cmp.Compare(a.Host, b.Host) })
		sorted += time.Since(begin)
	}
	b.ReportMetric(float64(decide)/float64(sorted), "x-sort")
}
