package store

import (
	"context"
	"sync"
	"time"
)

// batcher combines concurrent identity lookups into batches, so that one statement
// serves many callers. The first caller of a batch leads it: it flushes the batch for all
// of them as soon as no other flush is running. No goroutine runs between batches.
type batcher struct {
	// flush handles a batch: it sets the outcome of each item or returns an error
	// for all.
	flush func(context.Context, []*identityLookup) error

	mu   sync.Mutex
	open *batch // accepts items; nil if there is none
	last *batch // flushed most recently
}

// batch is the set of items of one flush.
type batch struct {
	items    []*identityLookup // in order of arrival
	previous *batch            // flushed before this one; nil if there is none
	full     chan struct{}     // closed when it has maxLookups items
	done     chan struct{}     // closed when err and the items' outcomes are set
	err      error
}

// Do adds an item to a batch and returns after the batch was flushed.
func (b *batcher) Do(ctx context.Context, item *identityLookup) error {
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
func (b *batcher) join(item *identityLookup) (joined *batch, leads bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if leads = b.open == nil; leads {
		b.open = &batch{previous: b.last, full: make(chan struct{}), done: make(chan struct{})}
	}
	joined = b.open
	if joined.items = append(joined.items, item); len(joined.items) == maxLookups {
		close(joined.full)
		b.open = nil
	}
	return joined, leads
}

// lead flushes the batch. The flush has neither the leader's deadline nor its
// cancellation, which must not fail the batch for the others; it bounds itself.
func (b *batcher) lead(ctx context.Context, led *batch) {
	defer close(led.done)
	if led.previous != nil {
		b.await(led)
	}
	led.err = b.flush(context.WithoutCancel(ctx), b.shut(led))
}

// await returns when the previous batch is flushed, this one is full or lookupMaxWait
// has passed.
func (b *batcher) await(led *batch) {
	timer := time.NewTimer(lookupMaxWait)
	defer timer.Stop()
	select {
	case <-led.previous.done:
	case <-led.full:
	case <-timer.C:
	}
}

// shut stops the batch from accepting items and returns them.
func (b *batcher) shut(led *batch) []*identityLookup {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == led {
		b.open = nil
	}
	b.last, led.previous = led, nil
	return led.items
}
