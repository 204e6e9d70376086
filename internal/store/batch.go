package store

import (
	"context"
	"sync"
	"time"
)

// batchPause is how long the first member of a batch waits for others.
const batchPause = 20 * time.Millisecond

// batcher runs what several requests need at the same time in one transaction.
type batcher struct {
	mu   sync.Mutex
	next *batch
}

// batch is a set of members that one call of run serves.
type batch struct {
	members []string
	done    chan struct{}
	err     error // set before done is closed
}

// join adds a member to the next batch, and returns the error of the batch. The first
// member runs the batch, also when its own request has ended.
func (b *batcher) join(ctx context.Context, member string, run func(context.Context, []string) error) error {
	b.mu.Lock()
	mine, leads := b.next, b.next == nil
	if leads {
		mine = &batch{done: make(chan struct{})}
		b.next = mine
	}
	mine.members = append(mine.members, member)
	full := len(mine.members) >= moveBatch
	if full {
		b.next = nil
	}
	b.mu.Unlock()
	if leads {
		b.lead(context.WithoutCancel(ctx), mine, run)
	}
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lead runs a batch after the pause.
func (b *batcher) lead(ctx context.Context, mine *batch, run func(context.Context, []string) error) {
	pause := time.NewTimer(batchPause)
	defer pause.Stop()
	<-pause.C
	b.mu.Lock()
	if b.next == mine {
		b.next = nil
	}
	members := mine.members
	b.mu.Unlock()
	mine.err = run(ctx, members)
	close(mine.done)
}
