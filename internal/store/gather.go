package store

import (
	"context"
	"sync"
	"time"
)

// gathering makes batches of what many callers ask for, so that one statement
// serves all who come close together. The first of a batch leads it: it waits for
// the others, asks for all and tells them. Nothing runs between two batches.
type gathering[T any] struct {
	// pause is how long a leader waits at least, and window how long after the
	// batch before was closed.
	pause, window time.Duration
	// eager lets a leader go as soon as no batch before is under way.
	eager bool
	// most bounds a batch.
	most int

	mu   sync.Mutex
	open *batch[T] // takes more, nil for none
	last *batch[T] // the one before, closed at
	at   time.Time
}

// batch is what goes into one statement.
type batch[T any] struct {
	items []*T          // by arrival; the leader's once the batch is closed
	after *batch[T]     // the one before
	full  chan struct{} // closed when there is no room left
	done  chan struct{} // closed when err and what the items came to are set
	err   error         // of all of them
}

// over reports whether a batch is done, or was never there.
func (b *batch[T]) over() bool {
	if b == nil {
		return true
	}
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// bring adds an item to a batch and returns once all of that were asked for with
// ask, which sets what each came to, or failed.
func (g *gathering[T]) bring(ctx context.Context, item *T, ask func(context.Context, []*T) error) error {
	b, wait, leads := g.join(item)
	if leads {
		g.lead(ctx, b, wait, ask)
		return b.err
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join puts an item into the open batch, or into one of its own, which its caller
// leads after the wait.
func (g *gathering[T]) join(item *T) (b *batch[T], wait time.Duration, leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if leads = g.open == nil; leads {
		g.open = &batch[T]{after: g.last, full: make(chan struct{}), done: make(chan struct{})}
		wait = max(g.pause, g.window-time.Since(g.at))
	}
	b = g.open
	if b.items = append(b.items, item); len(b.items) == g.most {
		close(b.full)
		g.open = nil
	}
	return b, wait, leads
}

// lead asks for a batch once it is time. The time that the leader has is
// everybody's, but its client's going away is not.
func (g *gathering[T]) lead(ctx context.Context, b *batch[T], wait time.Duration, ask func(context.Context, []*T) error) {
	defer close(b.done)
	if wait > 0 {
		g.linger(b, wait)
	}
	own := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		own, cancel = context.WithDeadline(own, end)
		defer cancel()
	}
	b.err = ask(own, g.shut(b))
}

// linger waits until the batch is full, or its time is over, or, for an eager
// one, nothing is under way.
func (g *gathering[T]) linger(b *batch[T], wait time.Duration) {
	var free <-chan struct{}
	if g.eager {
		if b.after.over() {
			return
		}
		free = b.after.done
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.full:
	case <-free:
	}
}

// shut lets nobody more into the batch and returns what it holds.
func (g *gathering[T]) shut(b *batch[T]) []*T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == b {
		g.open = nil
	}
	g.last, g.at, b.after = b, time.Now(), nil
	return b.items
}
