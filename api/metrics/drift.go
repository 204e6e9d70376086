package metrics

import "context"

// DriftCount is the number of nodes that differ from a template in one artifact, for the gauge
// gpuaas_drifted_nodes.
type DriftCount struct {
	Template string
	// Change is attach, detach or update.
	Change string
	// Artifact is the declared one, empty for detach: nodes choose these names.
	Artifact string
	Nodes    int64
}

// maxDriftSeries limits the combinations of template, change and artifact that have a series of their
// own. The others are counted under "other".
const maxDriftSeries = 200

// readDrift sets the gauge of drifted nodes. An artifact without nodes that differ has no series.
func (c *FleetCollector) readDrift(ctx context.Context) error {
	counts, err := c.counts.DriftCounts(ctx)
	if err != nil {
		return err
	}
	number := c.gauge("gpuaas_drifted_nodes", "Nodes that differ from their template in an artifact, as the last scan found, by template, change and artifact.",
		"template", "change", "artifact")
	var others int64
	for i, n := range counts {
		if i < maxDriftSeries {
			number(float64(n.Nodes), n.Template, n.Change, n.Artifact)
		} else {
			others += n.Nodes
		}
	}
	if others > 0 {
		number(float64(others), other, other, other)
	}
	return nil
}
