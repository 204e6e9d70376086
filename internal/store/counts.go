package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/api/metrics"
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

// CertificateAges returns the ages of the current certificates, the first to expire
// first.
func (s *Inventory) CertificateAges(ctx context.Context) ([]metrics.CertificateAge, error) {
	var ages []metrics.CertificateAge
	err := s.db.Read(ctx, "reading the ages of certificates", func(ctx context.Context) error {
		rows, err := s.db.q.CertificateAges(ctx)
		ages = make([]metrics.CertificateAge, len(rows))
		for i, r := range rows {
			ages[i] = metrics.CertificateAge{NodeID: r.NodeID, Left: seconds(r.SecondsLeft),
				Life: seconds(r.SecondsLife), SinceRenewal: seconds(r.SecondsSinceRenewal)}
		}
		return err
	})
	return ages, err
}

// Unpromoted returns the certificates that have been pending for longer than
// olderThan, oldest first.
func (s *Inventory) Unpromoted(ctx context.Context, olderThan time.Duration) ([]metrics.UnpromotedCertificate, error) {
	var waiting []metrics.UnpromotedCertificate
	err := s.db.Read(ctx, "listing pending certificates", func(ctx context.Context) error {
		rows, err := s.db.q.Unpromoted(ctx, olderThan.Seconds())
		waiting = make([]metrics.UnpromotedCertificate, len(rows))
		for i, r := range rows {
			waiting[i] = metrics.UnpromotedCertificate(r)
		}
		return err
	})
	return waiting, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// LostTasks counts the lost tasks, which wait for an operator.
func (s *Inventory) LostTasks(ctx context.Context) (n int64, err error) {
	err = s.db.Read(ctx, "counting lost tasks", func(ctx context.Context) (err error) {
		n, err = s.db.q.LostTasks(ctx)
		return err
	})
	return n, err
}
