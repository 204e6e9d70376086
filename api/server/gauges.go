package server

import (
	"context"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
)

// registerGauges publishes the gauges of the fleet.
func (a *app) registerGauges() error {
	known, err := store.KnownCheckers()
	if err != nil {
		return err
	}
	a.Registry.MustRegister(metrics.NewFleetCollector(a.store.Inventory, a.listener.Leading, a.Log).
		WithRequests(func(ctx context.Context) (int, error) {
			waiting, err := a.unclaimed(ctx)
			return len(waiting), err
		}).WithQueue(queueCounts(a.temporal)).WithCheckers(known))
	return nil
}

// queueCounts returns what waits in Temporal's task queue.
func queueCounts(client *temporal.Client) func(context.Context) ([]metrics.QueueCount, error) {
	return func(ctx context.Context) (counts []metrics.QueueCount, err error) {
		stats, err := client.Queue(ctx)
		for _, q := range stats {
			counts = append(counts, metrics.QueueCount{Tasks: q.Tasks, Waiting: q.Waiting, OldestSeconds: q.Age.Seconds()})
		}
		return counts, err
	}
}
