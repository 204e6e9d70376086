package store

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Capacity implements adminapi.Insights.
func (s *Insights) Capacity(ctx context.Context, sku, region string) ([]insight.Capacity, error) {
	const sql = `SELECT sku, region_code AS region, count(*) AS nodes, count(*) FILTER (WHERE serves AND workloads = '[]') AS free,
		count(*) FILTER (WHERE workloads <> '[]') AS busy, count(*) FILTER (WHERE NOT serves AND workloads = '[]') AS out,
		coalesce(sum(gpus_total) FILTER (WHERE serves AND workloads = '[]'), 0) AS gpus_free,
		count(*) FILTER (WHERE state IN ('drained', 'retired') AND workloads = '[]') AS returning
		FROM (SELECT *, state = 'active' AND NOT cordoned AND NOT node_silent(state, state_since, last_heartbeat_at, now(), $3::float8)
				AND NOT EXISTS (SELECT FROM conditions c JOIN health_reports r ON r.node_id = c.node_id AND r.source = c.source
					WHERE c.node_id = nodes.node_id AND c.status = 'unhealthy' AND c.repair NOT IN ('', 'none', 'observe')
					AND r.incarnation = nodes.incarnation AND r.reported_at > now() - make_interval(secs => $4::float8)) AS serves
			FROM nodes WHERE state <> 'removed' AND ($1 = '' OR sku = $1) AND ($2 = '' OR region_code = $2)) n
		GROUP BY 1, 2 ORDER BY 1, 2`
	return query(ctx, s.db, "counting capacity", func(ctx context.Context) ([]insight.Capacity, error) {
		return list[insight.Capacity](ctx, s.db, sql, sku, region, lifecycle.SilentAfter.Seconds(), wire.StaleHealth.Seconds())
	})
}

// Fleet implements adminapi.Insights.
func (s *Insights) Fleet(ctx context.Context) (insight.Fleet, error) {
	const nodes = `SELECT region_code AS region, sku, state, count(*) AS nodes, coalesce(sum(gpus_total), 0) AS gpus
		FROM nodes WHERE state <> 'removed' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`
	const ended = `SELECT status, count(*) AS operations FROM operations WHERE ended_at > now() - interval '24 hours' GROUP BY 1 ORDER BY 1`
	return query(ctx, s.db, "counting the fleet", func(ctx context.Context) (f insight.Fleet, err error) {
		if f.Nodes, err = list[insight.NodeCount](ctx, s.db, nodes); err == nil {
			f.Ended, err = list[insight.OutcomeCount](ctx, s.db, ended)
		}
		return f, err
	})
}

// Durations implements adminapi.Insights. A phase that an operator skipped or forced does not
// count.
func (s *Insights) Durations(ctx context.Context, a lifecycle.Action, provider string) ([]insight.Duration, error) {
	const sql = `WITH newest AS (
			SELECT o.started_at, o.ended_at, o.document FROM operations o JOIN nodes n USING (node_id)
			WHERE o.status = 'completed' AND o.action = $1 AND n.onboarding_mode = $2 ORDER BY o.ended_at DESC LIMIT $3
		), took AS (
			SELECT '' AS phase, extract(epoch FROM ended_at - started_at)::float8 AS seconds FROM newest
			UNION ALL
			SELECT p ->> 'name', extract(epoch FROM (p ->> 'ended_at')::timestamptz - (p ->> 'started_at')::timestamptz)::float8
			FROM newest, jsonb_array_elements(coalesce(document #> '{operation,phases}', '[]')) p WHERE p ->> 'state' = 'completed'
		)
		SELECT phase, count(*) AS samples, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS median_seconds,
			percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds) AS p90_seconds
		FROM took WHERE seconds >= 0 GROUP BY 1 ORDER BY 1`
	return query(ctx, s.db, "reading how long operations took", func(ctx context.Context) ([]insight.Duration, error) {
		return list[insight.Duration](ctx, s.db, sql, a, provider, insight.MaxSamples)
	})
}
