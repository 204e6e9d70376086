package metrics

import (
	"context"
	"slices"

	"github.com/gpuaas/gpuaas/schema/version"
)

const (
	// maxVersionSeries limits the versions of agents that have a series of their own.
	maxVersionSeries = 20
	// maxConditionSeries limits the combinations of checker and reason that have a series of their own.
	maxConditionSeries = 200
	// MaxNodeConditions is how many combinations of checker and reason count of one node. The agent has
	// fewer checkers, and a checker rarely finds two reasons.
	MaxNodeConditions = 20
)

// other is the label of what has no series of its own. It is also the label of a node's own "other".
const other = "other"

// condition is a combination of checker and reason.
type condition struct{ checker, reason string }

// readAgents sets the gauge of the agents' versions. Nodes choose the versions, so those beyond the limit
// are counted under "other".
func (c *FleetCollector) readAgents(ctx context.Context) error {
	counts, err := c.counts.AgentCounts(ctx)
	if err != nil {
		return err
	}
	number := c.gauge("gpuaas_node_agents", "Nodes by the version that their agent last reported. Versions beyond a limit are counted under other.", "version")
	var others int64
	for _, n := range counts {
		if n.Version != other && c.versions.admit(n.Version, n.Nodes, n.Version == version.Version()) {
			number(float64(n.Nodes), n.Version)
		} else {
			others += n.Nodes
		}
	}
	if others > 0 {
		number(float64(others), other)
	}
	return nil
}

// readConditions sets the gauge of unhealthy conditions. A checker and a reason without nodes have no
// series. Nodes choose both, so that known checkers come first, and combinations beyond the limit are
// counted under "other".
func (c *FleetCollector) readConditions(ctx context.Context) error {
	counts, err := c.counts.ConditionCounts(ctx)
	if err != nil {
		return err
	}
	known := func(n ConditionCount) bool { return slices.Contains(c.checkers, n.Checker) }
	// The counts stay in their order, the largest first, among the known ones and among the others.
	slices.SortStableFunc(counts, func(a, b ConditionCount) int { return rank(known(a)) - rank(known(b)) })
	number := c.gauge("gpuaas_node_conditions", "Nodes with an unhealthy condition, by checker and reason. Combinations beyond a limit are counted under other.",
		"checker", "reason")
	var others int64
	for _, n := range counts {
		own := n.Checker != "" && n.Checker != other
		if own && c.conditions.admit(condition{n.Checker, n.Reason}, n.Nodes, false) {
			number(float64(n.Nodes), n.Checker, n.Reason)
		} else {
			others += n.Nodes
		}
	}
	if others > 0 {
		number(float64(others), other, other)
	}
	return nil
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// readQueue sets the gauges of Temporal's task queue. They are absent while Temporal does not respond.
func (c *FleetCollector) readQueue(ctx context.Context) {
	if c.queue == nil {
		return
	}
	counts, err := c.queue(ctx)
	if err != nil {
		return
	}
	waiting := c.gauge("gpuaas_queue_tasks", "Tasks that wait for a worker in Temporal's task queue, by kind: workflow or activity.", "tasks")
	age := c.gauge("gpuaas_queue_age_seconds", "Age of the oldest task that waits for a worker in Temporal's task queue, by kind; 0 without one.", "tasks")
	for _, n := range counts {
		waiting(float64(n.Waiting), n.Tasks)
		age(n.OldestSeconds, n.Tasks)
	}
}
