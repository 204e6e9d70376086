package store

import (
	"context"
	"time"
)

// An open poll of a node that was fenced ends within sweepEvery and sweepBudget
// together when nobody is told of the fence.
const (
	sweepEvery  = 2 * time.Second
	sweepBudget = 2 * time.Second
)

// Sweep wakes, until the context ends, those subscribers whose identity is over,
// whether a notification came or not: a connection for notifications can be dead
// long before anybody knows. It is one query for all of them, and none while
// there are no subscribers. It returns the context's error.
func (s *Store) Sweep(ctx context.Context, l *Listener) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := s.sweep(ctx, l); err != nil && ctx.Err() == nil {
			l.log.Warn("open polls not compared with their nodes", "err", err, "retry_in", sweepEvery)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Store) sweep(ctx context.Context, l *Listener) error {
	ids, incarnations := l.polled()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepBudget)
	defer cancel()
	return s.read(ctx, "comparing open polls with their nodes", func(ctx context.Context) error {
		fenced, err := s.q.Fenced(ctx, ids, incarnations)
		for _, id := range fenced {
			l.wakeOne(id)
		}
		return err
	})
}
