package store

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Policy implements adminapi.Recovery.
func (s *Recovery) Policy(ctx context.Context) (record.Policy, error) {
	return query(ctx, s.db, "reading the recovery policy", func(ctx context.Context) (record.Policy, error) {
		return newestPolicy(ctx, s.db.q)
	})
}

// PolicyWithDigest implements adminapi.Recovery.
func (s *Recovery) PolicyWithDigest(ctx context.Context, digest string) (record.Policy, error) {
	return query(ctx, s.db, "reading a version of the recovery policy", func(ctx context.Context) (record.Policy, error) {
		row, err := s.db.q.PolicyWithDigest(ctx, digest)
		if !postgres.NotFound(err) {
			return policyOf(sqlc.NewestPolicyRow(row)), err
		}
		p, err := record.DefaultPolicy()
		if err == nil && p.Digest != digest {
			err = schema.NewError(schema.KindNotFound, "no recovery policy has the digest %.64q", digest)
		}
		return p, err
	})
}

// ListPolicies implements adminapi.Recovery.
func (s *Recovery) ListPolicies(ctx context.Context, p adminapi.Page) ([]record.Policy, []string, error) {
	f := &filter{}
	if len(p.After) > 0 {
		after, err := strconv.ParseInt(p.After[0], 10, 64)
		if err != nil {
			return nil, nil, errPageToken()
		}
		f.where("version < " + f.arg(after))
	}
	return page(ctx, s.db, listQuery{"listing recovery policies",
		"SELECT version, digest, coalesce(body ->> 'mode', '') AS mode, actor, via, reason, created_at AS at FROM recovery_policies", "version DESC", p.Limit}, f,
		func(v record.Policy) []string { return []string{strconv.FormatInt(v.Version, 10)} })
}

// ChangePolicy implements adminapi.Recovery.
func (s *Recovery) ChangePolicy(ctx context.Context, change func(record.Policy) (recovery.Policy, error), reason string, by audit.Subject) (record.Policy, error) {
	return write(ctx, s.db, "storing the recovery policy", func(ctx context.Context, tx *tx) (record.Policy, error) {
		if err := tx.LockPolicies(ctx); err != nil {
			return record.Policy{}, err
		}
		newest, err := newestPolicy(ctx, tx.Queries)
		if err != nil {
			return newest, err
		}
		p, err := change(newest)
		if err != nil || p.Digest() == newest.Digest {
			return newest, err
		}
		stored, err := record.Stored(p)
		if err != nil {
			return newest, err
		}
		row, err := tx.AddPolicy(ctx, sqlc.AddPolicyParams{Body: stored.Body, Digest: stored.Digest, Actor: by.Actor, Via: by.Via, Reason: reason})
		e := subjectEvent(by, audit.SystemStream, audit.PolicySet, p.Digest(), map[string]string{"version": strconv.FormatInt(row.Version, 10),
			"mode": string(p.Mode), "previous_digest": newest.Digest})
		e.Reason = reason
		tx.note(e)
		stored.Version, stored.Actor, stored.Via, stored.Reason, stored.At = row.Version, by.Actor, by.Via, reason, row.CreatedAt.UTC()
		return stored, err
	})
}

// CloseBreaker implements adminapi.Recovery.
func (s *Recovery) CloseBreaker(ctx context.Context, reason string, by audit.Subject) (recovery.BreakerState, error) {
	return write(ctx, s.db, "closing the breaker", func(ctx context.Context, tx *tx) (recovery.BreakerState, error) {
		row, err := tx.LockBreaker(ctx)
		if err != nil || row.Breaker.OpenSince.IsZero() {
			return row.Breaker, err
		}
		e := subjectEvent(by, audit.SystemStream, audit.BreakerClosed, "breaker", map[string]string{
			"open_since": row.Breaker.OpenSince.UTC().Format(time.RFC3339), "why": row.Breaker.Why})
		e.Reason = reason
		tx.note(e)
		closed := recovery.BreakerState{ClosedAt: row.Now.UTC(), Why: "closed by " + by.Actor + ": " + reason}
		return closed, tx.CloseBreaker(ctx, closed)
	})
}

// RecoveryStatus implements adminapi.Recovery.
func (s *Recovery) RecoveryStatus(ctx context.Context) (record.Status, error) {
	return query(ctx, s.db, "reading the state of health recovery", func(ctx context.Context) (st record.Status, err error) {
		row, err := s.db.q.ReadBreaker(ctx)
		if err != nil {
			return st, err
		}
		st.Breaker, st.Incidents = row.Breaker, append([]recovery.Incident{}, row.Incidents...)
		if row.DecidedAt != nil {
			st.DecidedAt = row.DecidedAt.UTC()
		}
		if st.Policy, err = newestPolicy(ctx, s.db.q); err != nil {
			return st, err
		}
		if st.Nodes, err = s.states(ctx); err != nil {
			return st, err
		}
		l := ledger{s.db.q}
		used, err := l.inUse(ctx)
		if err != nil {
			return st, err
		}
		sizes, err := l.sizes(ctx, used)
		st.Budgets = budgetsOf(sizes, used)
		return st, err
	})
}

// budgetsOf returns the scopes with repairs or with nodes that repairs left quarantined, and the fleet.
func budgetsOf(sizes []recovery.Size, used []reservation) []record.Budget {
	all := []record.Budget{}
	for _, size := range sizes {
		if size.Busy == 0 && size.Out == 0 && size.Scope != recovery.ScopeFleet {
			continue
		}
		b := record.Budget{Size: size}
		for _, u := range used {
			if key, in := u.scopes()[size.Scope]; in && key == size.Key {
				b.Operations = append(b.Operations, u.operationID)
			}
		}
		all = append(all, b)
	}
	return all
}

// decisionColumns are those of a record.Decision, with its phase as text.
const (
	decisionColumns = `d.decision_id, d.decided_at AS at, d.node_id, n.host, n.sku, n.region_code AS region, coalesce(n.labels ->> 'rack', '') AS rack, d.policy_version, d.mode, d.phase AS phase_name, d.fault, d.rung, d.brake,
	d.why, coalesce(d.operation_id::text, '') AS operation_id`
	stateColumns = decisionColumns + `, s.phase_since, s.why AS shown FROM recovery_states s JOIN recovery_decisions d USING (decision_id)
	JOIN nodes n ON n.node_id = s.node_id ORDER BY n.host, n.node_id`
)

// states returns the nodes that are not healthy.
func (s *Recovery) states(ctx context.Context) ([]record.NodeState, error) {
	type row struct {
		record.NodeState
		PhaseName, Shown string
	}
	rows, err := list[row](ctx, s.db, "SELECT "+stateColumns)
	states := []record.NodeState{}
	for _, r := range rows {
		r.Phase, r.Why = phaseNamed(r.PhaseName), r.Shown
		states = append(states, r.NodeState)
	}
	return states, err
}

// ListDecisions implements adminapi.Recovery.
func (s *Recovery) ListDecisions(ctx context.Context, q adminapi.DecisionQuery) (decisions []record.Decision, next []string, err error) {
	type row struct {
		record.Decision
		PhaseName string
	}
	f := &filter{}
	f.id("d.node_id", q.NodeID, errNoNode)
	f.since("d.decided_at", q.Since)
	f.afterTime("d.decided_at, d.decision_id", "<", q.After)
	rows, next, err := page(ctx, s.db, listQuery{"listing decisions of health recovery", "SELECT " + decisionColumns +
		" FROM recovery_decisions d JOIN nodes n USING (node_id)", "d.decided_at DESC, d.decision_id DESC", q.Limit}, f,
		func(r row) []string { return timeKey(r.At, r.DecisionID) })
	for _, r := range rows {
		r.Phase = phaseNamed(r.PhaseName)
		decisions = append(decisions, r.Decision)
	}
	return decisions, next, err
}

// maxAttempts bounds the attempts of one response.
const maxAttempts = 5000

// RecoveryFacts implements adminapi.Recovery.
func (s *Recovery) RecoveryFacts(ctx context.Context, since time.Time) (record.Facts, error) {
	return query(ctx, s.db, "reading the repairs of nodes", func(ctx context.Context) (f record.Facts, err error) {
		row, err := s.db.q.ReadBreaker(ctx)
		if err != nil {
			return f, err
		}
		f.At = row.Now.UTC()
		if f.Policy, err = newestPolicy(ctx, s.db.q); err != nil {
			return f, err
		}
		if f.Sizes, err = (ledger{s.db.q}).sizes(ctx, nil); err != nil {
			return f, err
		}
		if f.Nodes, err = s.nodesOfFacts(ctx, since); err != nil {
			return f, err
		}
		rows, err := s.db.q.AttemptsSince(ctx, since, maxAttempts+1)
		if f.Truncated = len(rows) > maxAttempts; f.Truncated {
			rows = rows[:maxAttempts]
		}
		f.Attempts = append([]recovery.Attempt{}, convert(rows, attemptOf)...)
		slices.Reverse(f.Attempts)
		return f, err
	})
}

// nodesOfFacts returns the nodes with a fault or a repair since a time, with their unhealthy conditions
// and without attempts.
func (s *Recovery) nodesOfFacts(ctx context.Context, since time.Time) ([]recovery.Node, error) {
	rows, err := s.db.q.NodesOfFacts(ctx, since)
	if err != nil {
		return nil, err
	}
	ids := convert(rows, func(n sqlc.NodesOfFactsRow) string { return n.NodeID })
	conditions, err := s.db.q.ConditionsToDecide(ctx, wire.StaleHealth.Seconds(), ids)
	of := map[string][]health.Condition{}
	for _, c := range conditions {
		if c.Status == string(health.Unhealthy) {
			of[c.NodeID] = append(of[c.NodeID], conditionOf(c))
		}
	}
	return append([]recovery.Node{}, convert(rows, func(n sqlc.NodesOfFactsRow) recovery.Node {
		return recovery.Node{NodeID: n.NodeID, Host: n.Host, SKU: n.SKU, Region: n.RegionCode, Rack: n.Rack, Class: string(n.LifecycleClass), GPUs: n.GPUsTotal,
			Creates: n.Creates, State: string(n.State), Conditions: append([]health.Condition{}, of[n.NodeID]...)}
	})...), err
}

// recoveryFaults reports what of health recovery needs an operator: an open breaker, faults of many
// nodes at once, and budgets that stop repairs.
func recoveryFaults(ctx context.Context, db *db) ([]wire.ControlPlaneFault, error) {
	row, err := query(ctx, db, "reading the state of health recovery", db.q.ReadBreaker)
	if err != nil {
		return nil, err
	}
	const component, status = "health-recovery", "gpuaas recovery status"
	var faults []wire.ControlPlaneFault
	if b := row.Breaker; !b.OpenSince.IsZero() {
		faults = append(faults, wire.ControlPlaneFault{Component: component, Reason: "breaker_open",
			Message: "no repair starts, because the breaker is open for " + lifecycle.Span(row.Now.Sub(b.OpenSince)) + ": " + b.Why,
			Next:    status + "; when the cause is removed: gpuaas recovery breaker close --reason TEXT"})
	}
	incidents := row.Incidents
	if len(faults) > 0 { // they are the same event: one line is enough
		incidents = nil
	}
	for _, i := range incidents[:min(len(incidents), maxIncidents)] {
		faults = append(faults, wire.ControlPlaneFault{Component: component, Reason: "incident", Message: i.Why, Next: status})
	}
	for _, w := range []struct {
		brake recovery.Brake
		what  string
	}{
		{recovery.BrakeBudget, "a budget before"},
		{recovery.BrakeApproval, "an approval of"},
		{recovery.BrakeFlapping, "a person, because repairs did not last, before"},
	} {
		stopped, err := query(ctx, db, "reading the repairs that wait", func(ctx context.Context) (sqlc.StoppedByRow, error) {
			return db.q.StoppedBy(ctx, w.brake)
		})
		if err != nil {
			return faults, err
		}
		if stopped.Nodes > 0 {
			faults = append(faults, wire.ControlPlaneFault{Component: component, Reason: string(w.brake), Next: status, Message: waitingText(stopped, w.what)})
		}
	}
	return appendNotRepaired(ctx, db, faults)
}

// appendNotRepaired adds the fault that names the nodes that a repair left quarantined.
func appendNotRepaired(ctx context.Context, db *db, faults []wire.ControlPlaneFault) ([]wire.ControlPlaneFault, error) {
	left, err := notRepaired(ctx, db)
	if err != nil || left.Nodes == 0 {
		return faults, err
	}
	read := "gpuaas doctor "
	if left.Evidence {
		read = "gpuaas node rma "
	}
	return append(faults, wire.ControlPlaneFault{Component: "health-recovery", Reason: "not_repaired",
		Next:    read + left.Host + "; when the node is repaired: " + lifecycle.ReleaseCommand(left.Host) + " --reason " + lifecycle.ReasonPlaceholder,
		Message: text.Count(int(left.Nodes), "node") + " stayed quarantined because a repair ended without a cure, the newest one " + left.Host + " since " + left.Since.UTC().Format(time.RFC3339)}), nil
}

// leftRow counts the nodes that a repair left quarantined, and names the newest one. Evidence is set if its
// repair has an RMA bundle.
type leftRow struct {
	Nodes    int64
	Host     string
	Since    time.Time
	Evidence bool
}

// notRepaired reads the quarantined nodes whose last operation, apart from canceled ones, is a repair that has
// ended, with its evidence or after it was abandoned.
func notRepaired(ctx context.Context, db *db) (leftRow, error) {
	const sql = `SELECT count(*) OVER () AS nodes, n.host, o.ended_at AS since, EXISTS (SELECT FROM rma_bundles b WHERE b.operation_id = o.operation_id) AS evidence
		FROM nodes n JOIN LATERAL (SELECT l.operation_id, l.action, l.status, l.ended_at FROM operations l WHERE l.node_id = n.node_id AND l.op_seq > 0 AND l.status <> 'cancelled'
			ORDER BY l.op_seq DESC LIMIT 1) o ON o.action = '` + string(lifecycle.ActionRecover) + `' AND o.status IN ('completed', 'failed')
		WHERE n.state = '` + string(lifecycle.NodeQuarantined) + `' ORDER BY o.ended_at DESC, n.host LIMIT 1`
	rows, err := query(ctx, db, "reading the nodes that no repair cured", func(ctx context.Context) ([]leftRow, error) {
		return list[leftRow](ctx, db, sql)
	})
	if err != nil || len(rows) == 0 {
		return leftRow{}, err
	}
	return rows[0], nil
}

// maxIncidents bounds the incidents that are reported one by one.
const maxIncidents = 5

// waitingText says how many repairs wait for something, and why the first one does.
func waitingText(s sqlc.StoppedByRow, what string) string {
	verb := " wait for "
	if s.Nodes == 1 {
		verb = " waits for "
	}
	return text.Count(int(s.Nodes), "node") + verb + what + " a repair, the first one " + s.Host + ": " + s.Why
}

// DeleteRepairs implements activities.OldRecords.
func (s *Retention) DeleteRepairs(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old decisions of health recovery", func(ctx context.Context) (int64, error) {
		decisions, err := s.db.q.DeleteOldDecisions(ctx, keep.Seconds(), int64(limit))
		if err != nil || decisions >= int64(limit) {
			return decisions, err
		}
		attempts, err := s.db.q.DeleteOldAttempts(ctx, keep.Seconds(), int64(limit)-decisions)
		return decisions + attempts, err
	})
}
