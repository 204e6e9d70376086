package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
)

// attentionSQL reads the nodes of the rows of the stuck table that are about nodes, each with the
// first row that applies. %s are the conditions on the table nodes n of the nodes that are wanted; the
// others count for the causes of those. A node with a locked identity
// is a fault of its own. A node of which a parked operation says the same is not repeated.
// Without a node API that receives requests, silence proves nothing.
const attentionSQL = `WITH seen AS (
	SELECT n.node_id, n.host, n.state, n.state_since, n.last_heartbeat_at, n.sku, n.region_code, n.workloads,
		coalesce(n.labels ->> 'rack', '') AS rack, coalesce(o.operation_id::text, '') AS operation_id, coalesce(o.action, '') AS action,
		o.deadline_at, c.not_after, c.not_before + (c.not_after - c.not_before) * $1::float8 AS renew_by,
		(n.state = ANY ($2::text[]) AND coalesce(o.stuck ->> 'reason', '') <> ALL ($3::text[])
			AND (n.state = 'offline' OR node_api_receiving($4::float8))
			AND node_silent(n.state, n.state_since, n.last_heartbeat_at, now(), $4::float8)) AS silent,
		(n.state = ANY ($2::text[]) AND c.not_before + (c.not_after - c.not_before) * $1::float8 < now()) AS overdue,
		(n.state = 'draining' AND n.state_since < now() - make_interval(secs => $5::float8)
			AND coalesce(o.status, '') NOT IN ('parked', 'abandoned')) AS long,
		(n.state IN ('terminating', 'removing') AND o.operation_id IS NULL AND n.state_since < now() - make_interval(secs => $6::float8)) AS unowned,
		(true%s) AS wanted
	FROM nodes n
	LEFT JOIN operations o ON o.node_id = n.node_id AND o.ended_at IS NULL AND o.op_seq > 0
	LEFT JOIN node_certificates c ON c.node_id = n.node_id AND c.slot = 'current'
	WHERE n.identity_locked_at IS NULL AND n.state <> 'removed'
), found AS (
	SELECT *, CASE WHEN silent THEN 'silent' WHEN overdue THEN 'certificate' WHEN long THEN 'draining' ELSE 'terminating' END AS entry,
		CASE WHEN silent THEN coalesce(last_heartbeat_at, state_since) WHEN overdue THEN renew_by ELSE state_since END AS since
	FROM seen WHERE silent OR overdue OR long OR unowned
)`

// attentionArgs are the parameters of attentionSQL, in order.
func attentionArgs() []any {
	silent, _ := stuck.Find(stuck.RowSilent, stuck.ScopeNode)
	draining, _ := stuck.Find(stuck.RowDraining, stuck.ScopeNode)
	ending, _ := stuck.Find(stuck.RowTerminating, stuck.ScopeNode)
	return []any{stuck.RenewBy, silent.States, []string{"agent_silent", lifecycle.ReasonTaskLost, lifecycle.ReasonMachineSilent},
		silent.After.Seconds(), draining.After.Seconds(), ending.After.Seconds()}
}

// attention is a node of attentionSQL with what surrounds it.
type attention struct {
	NodeID          string
	Host            string
	State           lifecycle.NodeState
	StateSince      time.Time
	LastHeartbeatAt *time.Time
	SKU             string `db:"sku"`
	RegionCode      string
	Workloads       []task.Workload
	Rack            string
	OperationID     string
	Action          lifecycle.Action
	DeadlineAt      *time.Time
	NotAfter        *time.Time
	RenewBy         *time.Time
	Entry           string // the row of the stuck table
	Since           time.Time
	// Total is the number of nodes with a row, RackSilent and RegionSilent those that are silent in
	// the node's rack and region. Free counts other nodes of the SKU and the region without work.
	Total        int64
	RackSilent   int64
	RegionSilent int64
	Free         int64
	Now          time.Time
	Wanted       bool
}

const attentionColumns = ` SELECT * FROM (SELECT f.node_id, f.host, f.state, f.state_since, f.last_heartbeat_at, f.sku, f.region_code, f.workloads, f.rack,
	f.operation_id, f.action, f.deadline_at, f.not_after, f.renew_by, f.entry, f.since, f.wanted, count(*) FILTER (WHERE f.wanted) OVER () AS total,
	count(*) FILTER (WHERE f.silent AND f.rack <> '') OVER (PARTITION BY f.rack) AS rack_silent,
	count(*) FILTER (WHERE f.silent) OVER (PARTITION BY f.region_code) AS region_silent,
	CASE f.entry WHEN 'draining' THEN (SELECT count(*) FROM nodes m WHERE m.state = 'active' AND NOT m.cordoned AND m.sku = f.sku
		AND m.region_code = f.region_code AND m.workloads = '[]'
		AND NOT node_silent(m.state, m.state_since, m.last_heartbeat_at, now(), $4::float8) AND m.node_id <> f.node_id) ELSE 0 END AS free, now() AS now
	FROM found f) f WHERE f.wanted ORDER BY f.since, f.node_id LIMIT `

// ListStuckNodes implements adminapi.Insights.
func (s *Insights) ListStuckNodes(ctx context.Context, q adminapi.OperationQuery) (nodes []stuck.Node, more int, err error) {
	f := &filter{args: attentionArgs()}
	f.id("n.node_id", q.NodeID, errNoNode)
	f.selector(q.Selector)
	if f.err != nil {
		return nil, 0, f.err
	}
	var conditions strings.Builder
	for _, c := range f.conditions {
		conditions.WriteString(" AND (" + c + ")")
	}
	sql := fmt.Sprintf(attentionSQL, conditions.String()) + attentionColumns + f.arg(stuck.MaxNodes)
	rows, err := query(ctx, s.db, "listing nodes that need attention", func(ctx context.Context) ([]attention, error) {
		return list[attention](ctx, s.db, sql, f.args...)
	})
	for _, r := range rows {
		nodes = append(nodes, r.view())
	}
	if len(rows) > 0 {
		more = int(rows[0].Total) - len(rows)
	}
	return nodes, more, err
}

// StuckNodeCounts counts the nodes that need attention by row, for the gauge.
func (s *Inventory) StuckNodeCounts(ctx context.Context) ([]metrics.StuckNodeCount, error) {
	return query(ctx, s.db, "counting nodes that need attention", func(ctx context.Context) ([]metrics.StuckNodeCount, error) {
		return list[metrics.StuckNodeCount](ctx, s.db, fmt.Sprintf(attentionSQL, "")+
			" SELECT entry AS \"row\", count(*) AS nodes FROM found GROUP BY 1 ORDER BY 1", attentionArgs()...)
	})
}

// view describes the node in the form of the list.
func (a attention) view() stuck.Node {
	row, _ := stuck.Find(a.Entry, stuck.ScopeNode)
	message, cause := a.describe()
	return stuck.Node{Row: a.Entry, NodeID: a.NodeID, Host: a.Host, State: a.State, OperationID: a.OperationID, Action: a.Action,
		Stuck: row.Stuck(a.Host, message, cause, a.Since.UTC())}
}

// describe returns the message of the node's row, and its cause where the rows around it say more
// than the table.
func (a attention) describe() (message, cause string) {
	age := lifecycle.Span(a.Now.Sub(a.Since))
	switch a.Entry {
	case stuck.RowSilent:
		return a.silence(age)
	case stuck.RowCertificate:
		return fmt.Sprintf("the certificate should have been renewed %s ago, and it expires at %s", age, stamp(a.NotAfter)), ""
	case stuck.RowDraining:
		return a.drains(age)
	}
	return fmt.Sprintf("the node has been %s for %s, and no operation holds it", a.State, age), ""
}

// silence describes a silent node. Nodes that are silent together have a common cause.
func (a attention) silence(age string) (message, cause string) {
	message = fmt.Sprintf("the node, which is %s, has sent no heartbeat for %s", a.State, age)
	switch {
	case a.RackSilent > 2:
		cause = fmt.Sprintf("%s of rack %s are silent: their switch or their power", text.Count(int(a.RackSilent), "node"), text.Plain(a.Rack, maxShownLabel, "._:-"))
	case a.RegionSilent > 2:
		cause = fmt.Sprintf("%s of region %s are silent: their network, or the way to the node API", text.Count(int(a.RegionSilent), "node"), a.RegionCode)
	case a.NotAfter != nil && a.NotAfter.Before(a.Now):
		cause = "the certificate expired at " + stamp(a.NotAfter) + "; the agent recovers automatically when it runs and reaches the node API"
	}
	return message, cause
}

// maxShownLabel bounds a label in a sentence.
const maxShownLabel = 40

// drains describes a long drain: what still runs, and whether there is capacity for it.
func (a attention) drains(age string) (message, cause string) {
	message = "the node has been draining for " + age
	if len(a.Workloads) > 0 {
		names := make([]string, 0, 3)
		for _, w := range a.Workloads[:min(len(a.Workloads), 3)] {
			names = append(names, w.Kind+" "+w.Name)
		}
		message += fmt.Sprintf("; %s left: %s", text.Count(len(a.Workloads), "workload"), text.Line(strings.Join(names, ", "), 200))
	}
	if a.DeadlineAt != nil {
		message += "; the phase ends at " + stamp(a.DeadlineAt)
	}
	if len(a.Workloads) == 0 {
		return message, "the agent has not reported the end of the drain"
	}
	if a.Free == 0 {
		return message, fmt.Sprintf("no other node of SKU %s in region %s is free, so workloads that move have no capacity: add a node, or end the workloads", a.SKU, a.RegionCode)
	}
	return message, fmt.Sprintf("the workloads do not end, although %s of SKU %s in region %s %s free", text.Count(int(a.Free), "node"), a.SKU, a.RegionCode,
		map[bool]string{true: "is", false: "are"}[a.Free == 1])
}

func stamp(t *time.Time) string {
	if t == nil {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}

// OnRecord returns those of the operations that are on record.
func (s *Insights) OnRecord(ctx context.Context, operationIDs []string) (known []string, err error) {
	type row struct{ OperationID string }
	rows, err := query(ctx, s.db, "looking for operations", func(ctx context.Context) ([]row, error) {
		return list[row](ctx, s.db, "SELECT operation_id FROM operations WHERE operation_id = ANY ($1::uuid[])", operationIDs)
	})
	for _, r := range rows {
		known = append(known, r.OperationID)
	}
	slices.Sort(known)
	return known, err
}
