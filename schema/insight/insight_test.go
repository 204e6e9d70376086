package insight_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestRecommend(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]insight.Capacity{
		"place workloads on the 2 free nodes":                                                       {Free: 2, Out: 1},
		"reactivate 1 drained or retired node: gpuaas node list --sku h100 --state drained,retired": {SKU: "h100", Out: 3, Returning: 1},
		"return 3 nodes to service: gpuaas stuck -l sku=h100":                                       {SKU: "h100", Out: 3},
		"add nodes of the SKU: every node has workloads":                                            {Busy: 3},
	} {
		c.Recommend()
		require.Equal(t, want, c.Recommendation)
	}
}

// TestRunbook has each command once: causes, probes, decisions by harm, and the check at the end.
func TestRunbook(t *testing.T) {
	t.Parallel()
	r := cause.Report{Host: "gpu-17", Candidates: []cause.Candidate{{Cause: "node_silent", Summary: "it is silent", Confidence: .5, Owner: diagnosis.Node, Next: "repair it"}},
		Probes: []diagnosis.Check{{Name: "heartbeat", Result: diagnosis.Failed, Next: "repair it"}, {Name: "lock", Result: diagnosis.OK},
			{Name: "agent fault", Result: diagnosis.Failed, Answer: "disk full", Owner: diagnosis.Node, Next: "free space"}}}
	b := insight.RunbookOf(r, &lifecycle.Stuck{Options: []lifecycle.Option{{Command: "gpuaas op retry", Does: "Retry"}, {Command: "gpuaas op force", Does: "Force", Harm: lifecycle.HarmWork}}})
	var commands []string
	for _, s := range b.Steps {
		commands = append(commands, s.Command)
	}
	require.Equal(t, []string{"repair it", "free space", "gpuaas op retry", "gpuaas op force", "gpuaas doctor gpu-17"}, commands)
	require.Contains(t, b.Summary, "it is silent (confidence 0.50)")
	require.Equal(t, lifecycle.HarmWork, b.Steps[3].Harm)

	empty := insight.RunbookOf(cause.Report{Host: "gpu-17"}, nil)
	require.Len(t, empty.Steps, 1)
	require.NotEmpty(t, insight.CVERunbook("gpu-17", "CVE-2026-1").Needs)
}

func TestDurationOf(t *testing.T) {
	t.Parallel()
	l := insight.DurationList{Durations: []insight.Duration{{Phase: "", Samples: 2}, {Phase: "drain"}}}
	require.NotNil(t, l.Of(""))
	require.Nil(t, l.Of("drain"))
	require.Nil(t, l.Of("cordon"))
}
