package store

import (
	"context"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// NodeCounts counts nodes by state, for the gauges.
func (s *Inventory) NodeCounts(ctx context.Context) ([]metrics.NodeCount, error) {
	rows, err := query(ctx, s.db, "counting nodes", s.db.q.NodeCounts)
	return convert(rows, func(r sqlc.NodeCountsRow) metrics.NodeCount { return metrics.NodeCount(r) }), err
}

// maxVersions bounds the versions of agents that are read for the gauge.
const maxVersions = 1000

// AgentCounts counts nodes by the version of their agent, for the gauge.
func (s *Inventory) AgentCounts(ctx context.Context) ([]metrics.AgentCount, error) {
	rows, err := query(ctx, s.db, "counting the versions of agents", func(ctx context.Context) ([]sqlc.AgentCountsRow, error) {
		return s.db.q.AgentCounts(ctx, maxVersions)
	})
	return convert(rows, func(r sqlc.AgentCountsRow) metrics.AgentCount { return metrics.AgentCount(r) }), err
}

// StuckCounts counts parked and abandoned operations by phase and reason, for the gauges.
func (s *Inventory) StuckCounts(ctx context.Context) ([]metrics.StuckCount, error) {
	rows, err := query(ctx, s.db, "counting stuck operations", s.db.q.StuckCounts)
	return convert(rows, func(r sqlc.StuckCountsRow) metrics.StuckCount { return metrics.StuckCount(r) }), err
}

// TaskLeases counts unfinished tasks by status, for the gauges.
func (s *Inventory) TaskLeases(ctx context.Context) ([]metrics.TaskCount, error) {
	rows, err := query(ctx, s.db, "counting tasks", s.db.q.TaskLeases)
	return convert(rows, func(r sqlc.TaskLeasesRow) metrics.TaskCount { return metrics.TaskCount(r) }), err
}

// CertificateCounts summarizes the held certificates, for the gauges.
func (s *Inventory) CertificateCounts(ctx context.Context) (metrics.CertificateCounts, error) {
	row, err := query(ctx, s.db, "counting certificates", func(ctx context.Context) (sqlc.CertificateCountsRow, error) {
		return s.db.q.CertificateCounts(ctx, trust.RenewAt-trust.RenewJitter, metrics.UnpromotedAfter.Seconds())
	})
	return metrics.CertificateCounts(row), err
}

// IdentityAttention counts the nodes with a locked identity or an alarm, for the gauge.
func (s *Inventory) IdentityAttention(ctx context.Context) ([]metrics.IdentityCount, error) {
	rows, err := query(ctx, s.db, "counting locked identities", func(ctx context.Context) ([]sqlc.IdentityAttentionCountsRow, error) {
		return s.db.q.IdentityAttentionCounts(ctx, trust.AlarmAge.Seconds())
	})
	return convert(rows, func(r sqlc.IdentityAttentionCountsRow) metrics.IdentityCount { return metrics.IdentityCount(r) }), err
}

// ConditionCounts counts the nodes with unhealthy conditions by checker and reason, for the gauge.
func (s *Inventory) ConditionCounts(ctx context.Context) ([]metrics.ConditionCount, error) {
	known, err := KnownCheckers()
	if err != nil {
		return nil, err
	}
	rows, err := query(ctx, s.db, "counting unhealthy conditions", func(ctx context.Context) ([]sqlc.ConditionCountsRow, error) {
		return s.db.q.ConditionCounts(ctx, wire.StaleHealth.Seconds(), known, metrics.MaxNodeConditions)
	})
	return convert(rows, func(r sqlc.ConditionCountsRow) metrics.ConditionCount { return metrics.ConditionCount(r) }), err
}

// KnownCheckers returns the names of the checkers of this version. The error is one in the tables of the
// program.
func KnownCheckers() (names []string, err error) {
	hosts, err := host.Checkers()
	for _, c := range hosts {
		names = append(names, c.Name())
	}
	for _, c := range health.NewDefaultCheckers() {
		names = append(names, c.Name())
	}
	return names, err
}

// OutboxAge returns the age of the oldest message that failed and is still to be
// delivered, in seconds, for the gauge.
func (s *Inventory) OutboxAge(ctx context.Context) (float64, error) {
	return query(ctx, s.db, "reading the age of the outbox", s.db.q.OutboxAge)
}

// TableSizes returns the sizes of the tables, for the gauges.
func (s *Inventory) TableSizes(ctx context.Context) ([]metrics.TableSize, error) {
	return query(ctx, s.db, "reading the sizes of tables", func(ctx context.Context) ([]metrics.TableSize, error) {
		return list[metrics.TableSize](ctx, s.db, `SELECT c.relname::text AS "table", greatest(c.reltuples, 0)::bigint AS rows, pg_total_relation_size(c.oid) AS bytes
			FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY 1`)
	})
}

// SurplusCounts counts the machines that no instance owns, for the gauge.
func (s *Inventory) SurplusCounts(ctx context.Context) ([]metrics.SurplusCount, error) {
	rows, err := query(ctx, s.db, "counting the surplus machines of providers", s.db.q.SurplusCounts)
	return convert(rows, func(r sqlc.SurplusCountsRow) metrics.SurplusCount { return metrics.SurplusCount(r) }), err
}

// RetentionAge returns the seconds since old records were last deleted completely, for the gauge.
func (s *Inventory) RetentionAge(ctx context.Context) (float64, error) {
	return query(ctx, s.db, "reading when old records were deleted", s.db.q.RetentionAge)
}

// RecoveryCounts returns the state of health recovery, for the gauges.
func (s *Inventory) RecoveryCounts(ctx context.Context) (metrics.RecoveryCounts, error) {
	row, err := query(ctx, s.db, "counting the nodes of health recovery", func(ctx context.Context) (sqlc.RecoveryCountsRow, error) {
		return s.db.q.RecoveryCounts(ctx, claimFor.Seconds())
	})
	return metrics.RecoveryCounts(row), err
}

// PhaseCounts returns the nodes of health recovery by phase.
func (s *Inventory) PhaseCounts(ctx context.Context) ([]metrics.PhaseCount, error) {
	rows, err := query(ctx, s.db, "counting the phases of health recovery", s.db.q.PhaseCounts)
	return convert(rows, func(r sqlc.PhaseCountsRow) metrics.PhaseCount { return metrics.PhaseCount(r) }), err
}
