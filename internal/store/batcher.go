package store

import (
	"context"
	"sync"
	"time"
)

// batcher combines concurrent calls into batches, so that one statement serves
// many callers. The first caller of a batch leads it: it flushes the batch for all
// of them as soon as no other flush is running. No goroutine runs between batches.
type batcher[T any] struct {
	// maxWait bounds how long a leader waits for the flush before its own.
	maxWait time.Duration
	// maxSize bounds a batch.
	maxSize int
	// flush handles a batch: it sets the outcome of each item or returns an error
	// for all.
	flush func(context.Context, []*T) error

	mu   sync.Mutex
	open *batch[T] // accepts items; nil if there is none
	last *batch[T] // flushed most recently
}

// batch is the set of items of one flush.
type batch[T any] struct {
	items    []*T          // in order of arrival
	previous *batch[T]     // flushed before this one; nil if there is none
	full     chan struct{} // closed when maxSize is reached
	done     chan struct{} // closed when err and the items' outcomes are set
	err      error
}

// Do adds an item to a batch and returns after the batch was flushed.
func (b *batcher[T]) Do(ctx context.Context, item *T) error {
	joined, leads := b.join(item)
	if leads {
		b.lead(ctx, joined)
		return joined.err
	}
	select {
	case <-joined.done:
		return joined.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join adds the item to the open batch, or opens one that the caller leads.
func (b *batcher[T]) join(item *T) (joined *batch[T], leads bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if leads = b.open == nil; leads {
		b.open = &batch[T]{previous: b.last, full: make(chan struct{}), done: make(chan struct{})}
	}
	joined = b.open
	if joined.items = append(joined.items, item); len(joined.items) == b.maxSize {
		close(joined.full)
		b.open = nil
	}
	return joined, leads
}

// lead flushes the batch. The flush keeps the leader's deadline but not its
// cancellation: another caller's disconnect must not fail the batch.
func (b *batcher[T]) lead(ctx context.Context, led *batch[T]) {
	defer close(led.done)
	if led.previous != nil {
		b.await(led)
	}
	own := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		own, cancel = context.WithDeadline(own, end)
		defer cancel()
	}
	led.err = b.flush(own, b.shut(led))
}

// await returns when the previous batch is flushed, this one is full or maxWait has
// passed.
func (b *batcher[T]) await(led *batch[T]) {
	timer := time.NewTimer(b.maxWait)
	defer timer.Stop()
	select {
	case <-led.previous.done:
	case <-led.full:
	case <-timer.C:
	}
}

// shut stops the batch from accepting items and returns them.
func (b *batcher[T]) shut(led *batch[T]) []*T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == led {
		b.open = nil
	}
	b.last, led.previous = led, nil
	return led.items
}
