package store

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/schema"
)

// The notification channels. The payload of channelNode is the node's id; the
// others carry none.
const (
	channelNode   = "gpuaas_node"
	channelOutbox = "gpuaas_outbox"
	channelSets   = "gpuaas_sets"
)

const (
	// listenCheck is how long a silent connection is believed before it is
	// asked, and how often the outbox is woken anyway.
	listenCheck = 15 * time.Second
	// listenBackoffMin and Max bound the pause between two tries to connect.
	listenBackoffMin = 100 * time.Millisecond
	listenBackoffMax = 5 * time.Second
)

// Listener implements nodeapi.Wakes on one connection of its own. While the
// connection is lost wakes are lost too, so everybody is woken once it is back.
type Listener struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	check  time.Duration

	mu          sync.Mutex
	subscribers map[string]map[chan struct{}]int64 // by node id, each with its incarnation; the others by their channel's name
}

// NewListener returns a listener on the database's notifications. Nothing
// happens before Run.
func NewListener(url string, log *slog.Logger) (*Listener, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errMalformedURL()
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	c.RuntimeParams["application_name"] = "gpuaas-listener"
	return &Listener{config: c, log: log, check: listenCheck, subscribers: map[string]map[chan struct{}]int64{}}, nil
}

// Run listens until the context ends, connecting again with a backoff whenever
// the connection is lost. It returns the context's error.
func (l *Listener) Run(ctx context.Context) error {
	for pause := listenBackoffMin; ; pause = min(2*pause, listenBackoffMax) {
		started := time.Now()
		err := l.listen(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(started) > listenBackoffMax {
			pause = listenBackoffMin
		}
		l.log.Warn("listening for wakes stopped", "err", interpretError(err, address(l.config), "listening"), "retry_in", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// listen holds one connection until it breaks.
func (l *Listener) listen(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, l.config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending on it
	for _, channel := range []string{channelNode, channelOutbox, channelSets} {
		if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
			return err
		}
	}
	l.wakeAll()
	for {
		if err := l.wait(ctx, conn); err != nil {
			return err
		}
	}
}

// wait passes one notification on, or checks a connection that said nothing for
// a while.
func (l *Listener) wait(ctx context.Context, conn *pgx.Conn) error {
	waiting, cancel := context.WithTimeout(ctx, l.check)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil && n.Channel == channelNode:
		l.wakeOne(n.Payload)
		return nil
	case err == nil:
		l.wakeOne(n.Channel)
		return nil
	case ctx.Err() != nil || waiting.Err() == nil || conn.IsClosed():
		return err
	}
	l.wakeOne(channelOutbox)
	checking, done := context.WithTimeout(ctx, connectTimeout)
	defer done()
	return conn.Ping(checking)
}

// Subscribe returns a channel that gets a value after each wake of the node,
// coalesced, and a function that ends the subscription. The incarnation is the
// caller's: see Store.Sweep.
func (l *Listener) Subscribe(nodeID string, incarnation int64) (wake <-chan struct{}, cancel func()) {
	return l.subscribe(nodeID, incarnation)
}

// polled are the nodes and incarnations of the open polls.
func (l *Listener) polled() (ids []string, incarnations []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, channels := range l.subscribers {
		if !schema.IsID(id) {
			continue // a channel of its own
		}
		for _, incarnation := range channels {
			ids, incarnations = append(ids, id), append(incarnations, incarnation)
		}
	}
	return ids, incarnations
}

// Sets returns a channel that gets a value after a verifier set was stored, and
// whenever the connection is new.
func (l *Listener) Sets() <-chan struct{} {
	wake, _ := l.subscribe(channelSets, 0)
	return wake
}

func (l *Listener) subscribe(key string, incarnation int64) (wake <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subscribers[key] == nil {
		l.subscribers[key] = map[chan struct{}]int64{}
	}
	l.subscribers[key][ch] = incarnation
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subscribers[key], ch)
		if len(l.subscribers[key]) == 0 {
			delete(l.subscribers, key)
		}
	}
}

func (l *Listener) wakeOne(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(key)
}

func (l *Listener) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.subscribers {
		l.wake(key)
	}
}

// wake leaves a value for each subscriber that has none waiting. The caller
// holds the lock.
func (l *Listener) wake(key string) {
	for ch := range l.subscribers[key] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
