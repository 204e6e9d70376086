package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// evidenceSQL reads what the database has about a node ($1): its record, its newest open operation
// that is parked, and what surrounds it. $2 are the seconds of silence, $3 those of a provider's
// description, $4 the share of a certificate's lifetime by which its renewal is overdue.
const evidenceSQL = `SELECT n.node_id, n.host, n.state, n.state_since, n.sku, n.region_code, coalesce(n.labels ->> 'rack', '') AS rack, n.polled_incarnation > 0 AS enrolled,
	n.last_heartbeat_at, n.uptime_seconds, n.agent_version, n.agent_fault, n.driver_fault, n.identity_lock_reason, n.set_version, n.workloads,
	coalesce((SELECT max(version) FROM verifier_sets), 0) AS newest_set, n.onboarding_mode AS provider, now() AS now, node_api_receiving($2::float8) AS receiving,
	c.not_after, c.not_before + (c.not_after - c.not_before) * $4::float8 AS renew_by,
	coalesce(o.operation_id::text, '') AS operation_id, coalesce(o.action, '') AS action, o.stuck,
	coalesce((p.info ->> 'disabled'), '') AS disabled, coalesce(p.updated_at > now() - make_interval(secs => $3::float8), false) AS described,
	around.*, (SELECT count(*) FROM operations s WHERE s.ended_at IS NULL AND s.stuck ->> 'reason' = o.stuck ->> 'reason'
		AND (s.stuck ->> 'since')::timestamptz BETWEEN (o.stuck ->> 'since')::timestamptz - interval '1 hour' AND now()) AS same_reason,
	(SELECT count(*) FROM operations s JOIN nodes m USING (node_id) WHERE s.ended_at IS NULL AND s.stuck ->> 'waiting_on' = 'provider'
		AND m.onboarding_mode = n.onboarding_mode) AS same_provider
FROM nodes n
LEFT JOIN node_certificates c ON c.node_id = n.node_id AND c.slot = 'current'
LEFT JOIN providers p ON p.name = n.onboarding_mode
LEFT JOIN LATERAL (SELECT * FROM operations o WHERE o.node_id = n.node_id AND o.ended_at IS NULL ORDER BY o.stuck IS NULL, o.op_seq DESC LIMIT 1) o ON true
CROSS JOIN LATERAL (SELECT
	count(*) FILTER (WHERE m.labels ->> 'rack' = n.labels ->> 'rack') AS rack_nodes,
	count(*) FILTER (WHERE m.labels ->> 'rack' = n.labels ->> 'rack' AND node_silent(m.state, m.state_since, m.last_heartbeat_at, now(), $2::float8)) AS rack_silent,
	count(*) FILTER (WHERE m.region_code = n.region_code) AS region_nodes,
	count(*) FILTER (WHERE m.region_code = n.region_code AND node_silent(m.state, m.state_since, m.last_heartbeat_at, now(), $2::float8)) AS region_silent,
	count(*) FILTER (WHERE m.region_code = n.region_code AND m.sku = n.sku AND m.state = 'active' AND NOT m.cordoned AND m.workloads = '[]'
		AND NOT node_silent(m.state, m.state_since, m.last_heartbeat_at, now(), $2::float8) AND m.node_id <> n.node_id) AS free
	FROM nodes m WHERE m.state IN ('active', 'offline', 'draining', 'quarantined')) around
WHERE n.node_id = $1::uuid`

// evidenceRow is a row of evidenceSQL.
type evidenceRow struct {
	NodeID             string
	Host               string
	State              lifecycle.NodeState
	StateSince         time.Time
	SKU                string `db:"sku"`
	RegionCode         string
	Rack               string
	Enrolled           bool
	LastHeartbeatAt    *time.Time
	UptimeSeconds      int64
	AgentVersion       string
	AgentFault         string
	DriverFault        string
	IdentityLockReason string
	SetVersion         int64
	Workloads          []task.Workload
	NewestSet          int64
	Provider           string
	Now                time.Time
	Receiving          bool
	NotAfter           *time.Time
	RenewBy            *time.Time
	OperationID        string
	Action             lifecycle.Action
	Stuck              *lifecycle.Stuck
	Disabled           string
	Described          bool
	RackNodes          int
	RackSilent         int
	RegionNodes        int
	RegionSilent       int
	Free               int
	SameReason         int
	SameProvider       int
}

// Evidence reads what the database has about a node for package cause: KindNotFound if there is no
// such node. It reads no faults of the control plane, and asks no provider.
func (s *Insights) Evidence(ctx context.Context, nodeID string, lookback time.Duration) (e cause.Evidence, err error) {
	rows, err := query(ctx, s.db, "reading the evidence about node "+nodeID, func(ctx context.Context) ([]evidenceRow, error) {
		return list[evidenceRow](ctx, s.db, evidenceSQL, nodeID, lifecycle.SilentAfter.Seconds(), machine.DescriptionLife.Seconds(), stuck.RenewBy)
	})
	if err != nil {
		return e, err
	}
	if len(rows) == 0 {
		return e, errNoNode(nodeID)
	}
	e = rows[0].view()
	e.Lookback = lookback
	if e.Changes, err = s.changes(ctx, nodeID, e.Park.OperationID, lookback); err != nil {
		return e, err
	}
	if e.Node.Conditions, err = s.conditions(ctx, nodeID); err != nil {
		return e, err
	}
	err = s.refusals(ctx, &e)
	return e, err
}

// view converts the row.
func (r evidenceRow) view() cause.Evidence {
	e := cause.Evidence{At: r.Now.UTC(), Node: cause.Node{ID: r.NodeID, Host: r.Host, State: r.State, StateSince: r.StateSince.UTC(), SKU: r.SKU, Region: r.RegionCode, Rack: r.Rack,
		Enrolled: r.Enrolled, AgentVersion: r.AgentVersion, AgentFault: r.AgentFault, DriverFault: r.DriverFault, LockReason: r.IdentityLockReason,
		SetVersion: r.SetVersion, NewestSet: r.NewestSet},
		Around: cause.Around{Receiving: r.Receiving, RackSilent: r.RackSilent, RackNodes: r.RackNodes, RegionSilent: r.RegionSilent, RegionNodes: r.RegionNodes,
			SameReason: r.SameReason, SameProvider: r.SameProvider, Free: r.Free},
		Provider: cause.Provider{Name: r.Provider, Described: r.Described, Disabled: r.Disabled}}
	for _, w := range r.Workloads {
		e.Node.Workloads = append(e.Node.Workloads, w.Kind+" "+w.Name)
	}
	for to, from := range map[*time.Time]*time.Time{&e.Node.LastHeartbeat: r.LastHeartbeatAt, &e.Node.NotAfter: r.NotAfter, &e.Node.RenewBy: r.RenewBy} {
		if from != nil {
			*to = from.UTC()
		}
	}
	if r.LastHeartbeatAt != nil && r.UptimeSeconds > 0 {
		e.Node.BootedAt = e.Node.LastHeartbeat.Add(-time.Duration(min(r.UptimeSeconds, maxUptime)) * time.Second)
	}
	if s := r.Stuck; s != nil {
		e.Park = cause.Park{OperationID: r.OperationID, Action: r.Action, Phase: s.Phase, Reason: s.Reason, Message: s.Message, Since: s.Since.UTC()}
	}
	return e
}

// changeActions are the audit actions that change a node, and fleetActions those that change
// what all nodes depend on.
func changeActions() []string {
	all := []string{audit.NodeSet, audit.NodeLock, audit.NodeUnlock, audit.IdentityActive, audit.FloorsRaised, audit.NodeRehydrated}
	for _, p := range lifecycle.Operations() {
		all = append(all, audit.ActionName(p.Action))
	}
	return all
}

func fleetActions() []string {
	return []string{audit.SetPublished, audit.RotationStarted, audit.RotationChanged, audit.RotationEnded, audit.SKUAdded, audit.SKUDeactivated,
		audit.RestoreStarted, audit.RestoreEnded}
}

// changes returns what changed about the node or the fleet in the lookback, newest first: an operation
// once, when it was accepted, and not the one that parked.
func (s *Insights) changes(ctx context.Context, nodeID, parked string, lookback time.Duration) ([]cause.Change, error) {
	const sql = `SELECT at, action, actor, CASE stream WHEN $1 THEN 'node' ELSE 'fleet' END AS scope,
		coalesce(nullif(detail ->> 'agent_version', ''), nullif(reason, ''), nullif(detail ->> 'version', ''), '') AS detail
		FROM audit_events WHERE at > now() - make_interval(secs => $2::float8) AND (result = 'accepted' OR result = 'succeeded' AND operation_id = '')
		AND (operation_id = '' OR operation_id <> $6)
		AND (stream = $1 AND action = ANY ($3::text[]) OR stream = '` + audit.SystemStream + `' AND action = ANY ($4::text[]))
		ORDER BY at DESC, seq DESC LIMIT $5`
	return query(ctx, s.db, "reading what changed", func(ctx context.Context) ([]cause.Change, error) {
		return list[cause.Change](ctx, s.db, sql, nodeID, lookback.Seconds(), changeActions(), fleetActions(), cause.MaxChanges, parked)
	})
}

// conditions returns what the reporters found about the node, as health recovery reads it.
func (s *Insights) conditions(ctx context.Context, nodeID string) ([]health.Condition, error) {
	rows, err := query(ctx, s.db, "reading the conditions of node "+nodeID, func(ctx context.Context) ([]sqlc.ConditionsToDecideRow, error) {
		return s.db.q.ConditionsToDecide(ctx, wire.StaleHealth.Seconds(), []string{nodeID})
	})
	return convert(rows, conditionOf), err
}

// refusals adds the rejections of the node's requests since its last heartbeat, at most those of the
// last day.
func (s *Insights) refusals(ctx context.Context, e *cause.Evidence) error {
	type row struct {
		Reason string
		Number int
	}
	const sql = `SELECT coalesce((array_agg(reason ORDER BY at DESC))[1], '') AS reason, count(*) AS number FROM audit_events
		WHERE stream = $1 AND action = ANY ($2::text[]) AND at > greatest($3::timestamptz, now() - interval '1 day')`
	rows, err := query(ctx, s.db, "reading rejections of the node", func(ctx context.Context) ([]row, error) {
		return list[row](ctx, s.db, sql, e.Node.ID, []string{audit.IdentityRefused, audit.TokenRefused, audit.RecoveryRefused}, e.Node.LastHeartbeat)
	})
	if len(rows) > 0 {
		e.Refusals, e.LastRefusal = rows[0].Number, rows[0].Reason
	}
	return err
}

// Unexplained implements activities.Causes.
func (s *Insights) Unexplained(ctx context.Context, limit int) ([]activities.UnexplainedPark, error) {
	sql := `SELECT o.operation_id, o.node_id, n.host, n.onboarding_mode AS provider, coalesce(i.instance_id::text, '') AS instance_id,
		coalesce(i.external_id, '') AS external_id, coalesce(i.region, '') AS region
		FROM operations o JOIN nodes n USING (node_id)
		LEFT JOIN LATERAL (SELECT * FROM instances i WHERE i.node_id = o.node_id ORDER BY i.created_at DESC LIMIT 1) i ON true
		WHERE o.ended_at IS NULL AND o.status = 'parked' AND NOT EXISTS (SELECT 1 FROM operation_causes c
			WHERE c.operation_id = o.operation_id AND c.stuck_since = (o.stuck ->> 'since')::timestamptz)
		ORDER BY (o.stuck ->> 'since')::timestamptz, o.operation_id LIMIT ` + strconv.Itoa(limit)
	return query(ctx, s.db, "listing parks without a probable cause", func(ctx context.Context) ([]activities.UnexplainedPark, error) {
		return list[activities.UnexplainedPark](ctx, s.db, sql)
	})
}

// KeepCause implements activities.Causes.
func (s *Insights) KeepCause(ctx context.Context, r cause.Report) error {
	return s.db.Call(ctx, "storing the probable cause of operation "+r.OperationID, func(ctx context.Context) error {
		_, err := s.db.Pool().Exec(ctx, `INSERT INTO operation_causes (operation_id, stuck_since, report, found_at) VALUES ($1::uuid, $2, $3, now())
			ON CONFLICT ON CONSTRAINT operation_causes_pkey DO UPDATE SET stuck_since = excluded.stuck_since, report = excluded.report, found_at = excluded.found_at`,
			r.OperationID, r.Since, r)
		return err
	})
}

// Cause returns the stored probable cause of an operation's park since a time, nil if there is
// none.
func (s *Insights) Cause(ctx context.Context, operationID string, since time.Time) (*cause.Report, error) {
	type row struct{ Report cause.Report }
	rows, err := query(ctx, s.db, "reading the probable cause", func(ctx context.Context) ([]row, error) {
		return list[row](ctx, s.db, "SELECT report FROM operation_causes WHERE operation_id = $1::uuid AND stuck_since = $2", operationID, since)
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0].Report, nil
}
