package store

import (
	"context"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	selectSignals = `SELECT s.signal_id, s.type, s.source, s.node_id, n.host, coalesce(s.instance_id::text, '') AS instance_id, s.at, s.status,
		s.component, s.reason, s.code, s.repair, s.boot_id, s.detail FROM signals s JOIN nodes n USING (node_id)`
	signalOrder = "s.at DESC, s.signal_id DESC"
	// selectConditions reads the conditions of nodes, the unhealthy ones first. A stale one has the
	// status unknown; $2 is when it becomes stale, in seconds.
	selectConditions = `SELECT node_id, checker, component, CASE WHEN stale THEN 'unknown' ELSE status END AS status, reason, code, repair, detail, since,
			samples, fault_since, fault_samples, unknown_seconds, source, reported_at, boot_id, stale
		FROM (SELECT c.*, r.reported_at, r.boot_id, r.incarnation <> n.incarnation OR r.reported_at < now() - make_interval(secs => $2::float8) AS stale
			FROM conditions c JOIN health_reports r USING (node_id, source) JOIN nodes n USING (node_id) WHERE c.node_id = ANY ($1::uuid[])) c
		ORDER BY stale OR status <> 'unhealthy', status = 'healthy', checker, component, source`
)

// Signals reads signals and stores reports about the health of nodes. It implements adminapi.Signals.
type Signals struct{ db *db }

// ListSignals implements adminapi.Signals.
func (s *Signals) ListSignals(ctx context.Context, q adminapi.SignalQuery) (signals []health.Signal, next []string, err error) {
	return page(ctx, s.db, listQuery{"listing signals", selectSignals, signalOrder, q.Limit}, signalFilter(q),
		func(s health.Signal) []string { return timeKey(s.At, s.SignalID) })
}

func signalFilter(q adminapi.SignalQuery) *filter {
	f := &filter{}
	f.id("s.node_id", q.NodeID, errNoNode)
	f.signalTypes(q.Types)
	anyOf(f, "s.status", q.Statuses)
	anyOf(f, "n.sku", q.SKUs)
	anyOf(f, "n.region_code", q.Regions)
	f.selector(q.Selector)
	f.since("s.at", q.Since)
	f.afterTime("s.at, s.signal_id", "<", q.After)
	return f
}

// signalTypes adds a condition that a signal has one of the types. One that ends with .* means each
// type with this beginning.
func (f *filter) signalTypes(types []health.SignalType) {
	var exact, patterns []string
	for _, t := range types {
		if prefix, open := strings.CutSuffix(string(t), ".*"); open {
			patterns = append(patterns, likePattern(prefix)+".%")
		} else {
			exact = append(exact, string(t))
		}
	}
	switch {
	case len(patterns) > 0:
		f.where("s.type = ANY (" + f.arg(exact) + "::text[]) OR s.type LIKE ANY (" + f.arg(patterns) + "::text[])")
	default:
		anyOf(f, "s.type", exact)
	}
}

// fillConditions adds the conditions of nodes.
func fillConditions(ctx context.Context, db *db, ids []string, byID map[string]*wire.NodeView) error {
	rows, err := list[struct {
		NodeID string
		signal.Condition
	}](ctx, db, selectConditions, ids, wire.StaleHealth.Seconds())
	for _, r := range rows {
		byID[r.NodeID].Conditions = append(byID[r.NodeID].Conditions, r.Condition)
	}
	return err
}

// ReportHealth implements adminapi.Signals.
func (s *Signals) ReportHealth(ctx context.Context, n wire.NodeView, r health.Report) (accepted bool, err error) {
	return storeHealth(ctx, s.db, healthReport{Report: r, nodeID: n.ID, source: health.SourceCluster, incarnation: n.Incarnation})
}

// DeleteSignals implements activities.OldRecords.
func (s *Retention) DeleteSignals(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old signals", func(ctx context.Context) (int64, error) {
		return s.db.q.DeleteOldSignals(ctx, keep.Seconds(), int64(limit))
	})
}
