package metrics

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// However many templates and artifacts there are, the number of series is bounded.
func TestDriftGauge(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{drifts: []DriftCount{{Template: "h100", Change: "update", Artifact: "kernel", Nodes: 7}, {Template: "h100", Change: "detach", Nodes: 2}}}
	leading := func() bool { return true }
	require.NoError(t, testutil.CollectAndCompare(NewFleetCollector(f, leading, slog.New(slog.DiscardHandler)), strings.NewReader(`
# HELP gpuaas_drifted_nodes Nodes that differ from their template in an artifact, as the last scan found, by template, change and artifact.
# TYPE gpuaas_drifted_nodes gauge
gpuaas_drifted_nodes{artifact="",change="detach",template="h100"} 2
gpuaas_drifted_nodes{artifact="kernel",change="update",template="h100"} 7
`), "gpuaas_drifted_nodes"))
	for i := range maxDriftSeries + 5 {
		f.drifts = append(f.drifts, DriftCount{Template: "h100", Change: "attach", Artifact: fmt.Sprint("a", i), Nodes: 1})
	}
	require.Equal(t, maxDriftSeries+1, testutil.CollectAndCount(NewFleetCollector(f, leading, slog.New(slog.DiscardHandler)), "gpuaas_drifted_nodes"))
}
