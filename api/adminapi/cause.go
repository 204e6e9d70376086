package adminapi

import (
	"cmp"
	"time"

	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// insights serves what the records say about nodes, the fleet and past operations.
type insights struct{ base }

// cause ranks the possible causes of what keeps a node from working, with the evidence of now. It
// asks no provider: only workers can.
func (i insights) cause(c *call) (any, error) {
	q := i.query(c)
	lookback := time.Duration(q.number("lookback_hours", int(cause.Lookback/time.Hour), 1, int(cause.MaxLookback/time.Hour))) * time.Hour
	if err := q.check(); err != nil {
		return nil, err
	}
	report, _, err := i.explain(c, lookback)
	return report, err
}

// explain reads the evidence about the node of the path and explains it.
func (i insights) explain(c *call, lookback time.Duration) (cause.Report, wire.NodeView, error) {
	node, err := i.find(c)
	if err != nil {
		return cause.Report{}, node, err
	}
	e, err := i.Insights.Evidence(c.Context(), node.ID, lookback)
	if err != nil {
		return cause.Report{}, node, err
	}
	if i.Faults != nil {
		e.FaultsRead = true
		for _, f := range i.Faults(c.Request) {
			e.Faults = append(e.Faults, cause.Fault(f))
		}
	}
	return cause.Explain(e), node, nil
}

// runbook orders what to do about a node. With the parameter cve, it says what a runbook for a
// vulnerability needs.
func (i insights) runbook(c *call) (any, error) {
	q := i.query(c)
	id := q.one("cve")
	if id != "" && !text.IsToken(id, maxCVE, "-") {
		q.fail(badField("cve", "must be an ID such as CVE-2026-1234"))
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	if id != "" {
		node, err := i.find(c)
		return insight.CVERunbook(node.Host, id), err
	}
	report, node, err := i.explain(c, cause.Lookback)
	if err != nil {
		return nil, err
	}
	var stuck *lifecycle.Stuck
	if node.Operation != nil {
		stuck = node.Operation.Stuck
	}
	return insight.RunbookOf(report, stuck), nil
}

// maxCVE bounds the ID of a vulnerability.
const maxCVE = 32

// capacity counts the nodes of each SKU and region.
func (i insights) capacity(c *call) (any, error) {
	q := i.query(c)
	sku, region := q.one("sku"), q.one("region")
	if err := q.check(); err != nil {
		return nil, err
	}
	all, err := i.Insights.Capacity(c.Context(), sku, region)
	for n := range all {
		all[n].Recommend()
	}
	return insight.CapacityList{Capacity: append([]insight.Capacity{}, all...)}, err
}

// fleet counts nodes and the operations of the last day.
func (i insights) fleet(c *call) (any, error) {
	if err := i.query(c).check(); err != nil {
		return nil, err
	}
	f, err := i.Insights.Fleet(c.Context())
	f.Nodes, f.Ended = append([]insight.NodeCount{}, f.Nodes...), append([]insight.OutcomeCount{}, f.Ended...)
	return f, err
}

// durations returns how long operations of an action took.
func (i insights) durations(c *call) (any, error) {
	q := i.query(c)
	list := insight.DurationList{Action: lifecycle.Action(q.one("action")), Provider: cmp.Or(q.one("provider"), inventory.ProviderManual)}
	if p, known := lifecycle.PlanOf(list.Action, lifecycle.Options{}); !known || p.Workflow == "" {
		q.fail(badField("action", "must be an action of a node, for example drain"))
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	found, err := i.Insights.Durations(c.Context(), list.Action, list.Provider)
	list.Durations = append([]insight.Duration{}, found...)
	return list, err
}
