package store

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
)

// The notification channels. The payload of channelNode is the node's id; the
// others carry none.
const (
	channelNode   = "gpuaas_node"
	channelOutbox = "gpuaas_outbox"
	channelSets   = "gpuaas_sets"
)

// Listener wakes polls, the relay and the followers of verifier sets. It
// implements nodeapi.Wakes on one connection of its own. Notifications are lost
// while the connection is lost, so a new connection wakes every subscriber.
type Listener struct {
	*postgres.Listener
	log *slog.Logger

	mu sync.Mutex
	// subscribers holds each subscriber's incarnation, by node id or channel.
	subscribers map[string]map[chan struct{}]int64
}

// NewListener returns a listener that connects in Run. A malformed URL is
// KindInvalidRequest.
func NewListener(url string, log *slog.Logger) (_ *Listener, err error) {
	l := &Listener{log: log, subscribers: map[string]map[chan struct{}]int64{}}
	l.Listener, err = postgres.NewListener(postgres.ListenConfig{
		URL: url, Channels: []string{channelNode, channelOutbox, channelSets}, Log: log, Failover: new(postgres.Failover),
		OnConnect: l.wakeAll,
		OnNotify: func(n postgres.Notification) {
			if n.Channel == channelNode {
				l.wake(n.Payload)
			} else {
				l.wake(n.Channel)
			}
		},
	})
	return l, err
}

// Subscribe returns a channel that receives after each wake of the node,
// coalesced, and a function that ends the subscription. Sweep compares the
// incarnation with the node's, and closes the channel when it cannot. A channel's name
// subscribes to the channel.
func (l *Listener) Subscribe(nodeID string, incarnation int64) (wake <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subscribers[nodeID] == nil {
		l.subscribers[nodeID] = map[chan struct{}]int64{}
	}
	l.subscribers[nodeID][ch] = incarnation
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subscribers[nodeID], ch)
		if len(l.subscribers[nodeID]) == 0 {
			delete(l.subscribers, nodeID)
		}
	}
}

// Sets returns a channel that receives after a verifier set was stored, after a change of a
// rotation of the node CA, and after each new connection.
func (l *Listener) Sets() <-chan struct{} {
	wake, _ := l.Subscribe(channelSets, 0)
	return wake
}

// polls returns the nodes and incarnations of the open polls.
func (l *Listener) polls() (ids []string, incarnations []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, channels := range l.subscribers {
		if !schema.IsID(id) {
			continue // not a poll but the subscriber of a channel
		}
		for _, incarnation := range channels {
			ids, incarnations = append(ids, id), append(incarnations, incarnation)
		}
	}
	return ids, incarnations
}

// wake wakes the subscribers of a node or channel.
func (l *Listener) wake(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wakeEach(l.subscribers[key])
}

// endPolls closes the channels of all open polls.
func (l *Listener) endPolls() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, channels := range l.subscribers {
		if !schema.IsID(id) {
			continue
		}
		for ch := range channels {
			close(ch)
		}
		delete(l.subscribers, id)
	}
}

func (l *Listener) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channels := range l.subscribers {
		wakeEach(channels)
	}
}

// wakeEach leaves a value for each subscriber that has none pending.
func wakeEach(channels map[chan struct{}]int64) {
	for ch := range channels {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// Within sweepEvery plus sweepBudget, a poll learns of a fence or a task whose
// notification was lost.
const (
	sweepEvery  = 2 * time.Second
	sweepBudget = 2 * time.Second
)

// unconfirmedAfter is how long open polls outlive the last comparison with their nodes.
// The attempt that finds it exceeded begins at most sweepEvery later and takes at most
// sweepBudget, so a process that is cut off from the database ends its polls within 10 s.
const unconfirmedAfter = 5 * time.Second

// Sweep wakes, until the context ends, the open polls whose identity was revoked
// or whose node has a task to dispatch, with or without a notification. It runs
// one query for all polls of the process and none while there are no polls. It ends all
// polls when it could not compare them for unconfirmedAfter: their identities may have
// been revoked since. It returns the context's error.
func (s *Inventory) Sweep(ctx context.Context, l *Listener) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	compared := time.Now()
	for {
		began := time.Now()
		if err := s.sweep(ctx, l); err == nil {
			compared = began
		} else if ctx.Err() == nil {
			l.log.Warn("cannot compare open polls with their nodes", "err", err, "retry_in", sweepEvery)
			if time.Since(compared) > unconfirmedAfter {
				l.endPolls()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Inventory) sweep(ctx context.Context, l *Listener) error {
	ids, incarnations := l.polls()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepBudget)
	defer cancel()
	return s.db.Call(ctx, "comparing open polls with their nodes", func(ctx context.Context) error {
		due, err := s.db.q.PollsToWake(ctx, ids, incarnations)
		for _, id := range due {
			l.wake(id)
		}
		return err
	})
}
