package store

import (
	"context"
	"sync"
	"time"
)

// batcher combines concurrent calls into batches, so that one statement serves
// many callers. The first caller of a batch leads it: it waits for others and
// flushes the batch for all of them. No goroutine runs between batches.
type batcher[T any] struct {
	// minWait is how long a leader waits at least. maxWait is the least time
	// between two flushes, so it bounds how long a caller waits.
	minWait, maxWait time.Duration
	// eager makes a leader flush as soon as no other flush is running.
	eager bool
	// maxSize bounds a batch.
	maxSize int
	// flush handles a batch: it sets the outcome of each item or returns an error
	// for all.
	flush func(context.Context, []*T) error

	mu      sync.Mutex
	open    *batch[T] // accepts items; nil if there is none
	last    *batch[T] // flushed most recently
	flushed time.Time // when last was closed
}

// batch is the set of items of one flush.
type batch[T any] struct {
	items    []*T          // in order of arrival
	previous *batch[T]     // flushed before this one
	full     chan struct{} // closed when maxSize is reached
	done     chan struct{} // closed when err and the items' outcomes are set
	err      error
}

// isDone reports whether the batch was flushed. A nil batch is done.
func (b *batch[T]) isDone() bool {
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

// Do adds an item to a batch and returns after the batch was flushed.
func (b *batcher[T]) Do(ctx context.Context, item *T) error {
	joined, wait, leads := b.join(item)
	if leads {
		b.lead(ctx, joined, wait)
		return joined.err
	}
	select {
	case <-joined.done:
		return joined.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join adds the item to the open batch, or opens one that the caller leads after
// the wait.
func (b *batcher[T]) join(item *T) (joined *batch[T], wait time.Duration, leads bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if leads = b.open == nil; leads {
		b.open = &batch[T]{previous: b.last, full: make(chan struct{}), done: make(chan struct{})}
		wait = max(b.minWait, b.maxWait-time.Since(b.flushed))
	}
	joined = b.open
	if joined.items = append(joined.items, item); len(joined.items) == b.maxSize {
		close(joined.full)
		b.open = nil
	}
	return joined, wait, leads
}

// lead flushes the batch after the wait. The flush keeps the leader's deadline
// but not its cancellation: another caller's disconnect must not fail the batch.
func (b *batcher[T]) lead(ctx context.Context, led *batch[T], wait time.Duration) {
	defer close(led.done)
	if wait > 0 {
		b.await(led, wait)
	}
	own := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		own, cancel = context.WithDeadline(own, end)
		defer cancel()
	}
	led.err = b.flush(own, b.shut(led))
}

// await returns when the batch is full, the wait is over or, if eager, no flush
// is running.
func (b *batcher[T]) await(led *batch[T], wait time.Duration) {
	var idle <-chan struct{}
	if b.eager {
		if led.previous.isDone() {
			return
		}
		idle = led.previous.done
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-led.full:
	case <-idle:
	}
}

// shut stops the batch from accepting items and returns them.
func (b *batcher[T]) shut(led *batch[T]) []*T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == led {
		b.open = nil
	}
	b.last, b.flushed, led.previous = led, time.Now(), nil
	return led.items
}
