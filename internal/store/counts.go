package store

import (
	"context"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// NodeCounts counts nodes by state, for the gauges.
func (s *Inventory) NodeCounts(ctx context.Context) ([]metrics.NodeCount, error) {
	var counts []metrics.NodeCount
	err := s.db.Read(ctx, "counting nodes", func(ctx context.Context) error {
		rows, err := s.db.q.NodeCounts(ctx)
		for _, r := range rows {
			counts = append(counts, metrics.NodeCount(r))
		}
		return err
	})
	return counts, err
}

// StuckCounts counts parked operations by phase and reason, for the gauges.
func (s *Inventory) StuckCounts(ctx context.Context) ([]metrics.StuckCount, error) {
	var counts []metrics.StuckCount
	err := s.db.Read(ctx, "counting parked operations", func(ctx context.Context) error {
		rows, err := s.db.q.StuckCounts(ctx)
		for _, r := range rows {
			counts = append(counts, metrics.StuckCount(r))
		}
		return err
	})
	return counts, err
}

// TaskLeases counts unfinished tasks by status, for the gauges.
func (s *Inventory) TaskLeases(ctx context.Context) ([]metrics.TaskCount, error) {
	var counts []metrics.TaskCount
	err := s.db.Read(ctx, "counting tasks", func(ctx context.Context) error {
		rows, err := s.db.q.TaskLeases(ctx)
		for _, r := range rows {
			counts = append(counts, metrics.TaskCount(r))
		}
		return err
	})
	return counts, err
}

// CertificateCounts summarizes the held certificates, for the gauges.
func (s *Inventory) CertificateCounts(ctx context.Context) (metrics.CertificateCounts, error) {
	c := metrics.CertificateCounts{ShareLeft: 1}
	err := s.db.Read(ctx, "counting certificates", func(ctx context.Context) error {
		rows, err := s.db.q.CertificateAges(ctx)
		if err != nil {
			return err
		}
		for _, r := range rows {
			left := max(0, r.SecondsLeft/max(1, r.SecondsLife))
			c.ShareLeft = min(c.ShareLeft, left)
			if left < trust.RenewAt-trust.RenewJitter {
				c.Overdue++
			}
		}
		unused, err := s.db.q.Unpromoted(ctx, metrics.UnpromotedAfter.Seconds())
		c.Unpromoted = int64(len(unused))
		return err
	})
	return c, err
}

// LostTasks counts the lost tasks, which wait for an operator.
func (s *Inventory) LostTasks(ctx context.Context) (n int64, err error) {
	err = s.db.Read(ctx, "counting lost tasks", func(ctx context.Context) (err error) {
		n, err = s.db.q.LostTasks(ctx)
		return err
	})
	return n, err
}
