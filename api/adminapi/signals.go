package adminapi

import (
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/text"
)

// signals serves the signals of nodes and takes the reports of the cluster agent.
type signals struct {
	base
	reports *reportLimits
}

// list lists the signals of all nodes, newest first.
func (s signals) list(c *call) (any, error) {
	q := s.listQuery(c)
	of := signalQuery(q)
	of.NodeID, of.SKUs, of.Regions, of.Selector = q.node(), words[string](q, "sku"), words[string](q, "region"), q.selector()
	return page(q, "signals", of, s.Signals.ListSignals)
}

// ofNode lists the signals of one node, newest first.
func (s signals) ofNode(c *call) (any, error) {
	q := s.listQuery(c)
	of := signalQuery(q)
	if err := q.check(); err != nil {
		return nil, err
	}
	node, err := s.find(c)
	if err != nil {
		return nil, err
	}
	of.NodeID = node.ID
	return page(q, "signals", of, s.Signals.ListSignals)
}

// signalQuery reads the parameters of both lists.
func signalQuery(q *query) SignalQuery {
	of := SignalQuery{Page: q.page(2), Types: words[health.SignalType](q, "type"), Statuses: words(q, "status", health.Healthy, health.Unhealthy, health.Unknown),
		Since: q.since()}
	if slices.ContainsFunc(of.Types, func(t health.SignalType) bool { return !text.IsToken(strings.TrimSuffix(string(t), ".*"), 64, "._-") }) {
		q.fail(badField("type", "must be a type such as instance.silent, or a beginning such as health.*"))
	}
	return of
}

// report stores what the cluster agent found about a node.
func (s signals) report(c *call) (any, error) {
	if err := s.reports.take(c.w, c.by.Actor, time.Now()); err != nil {
		return nil, err
	}
	r, err := body(c, edge.Decode, func(r *health.Report) error { return r.Validate() })
	if err != nil {
		return nil, err
	}
	node, err := s.find(c)
	if err == nil && node.State == lifecycle.NodeRemoved {
		err = schema.NewError(schema.KindNotFound, "node %s is removed", node.Host).WithNext("gpuaas node list")
	}
	if err != nil {
		return nil, err
	}
	accepted, err := s.Signals.ReportHealth(c.Context(), node, r)
	return signal.Answer{Accepted: accepted}, err
}
