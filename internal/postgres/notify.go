package postgres

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Notification is a message on a channel.
type Notification struct{ Channel, Payload string }

// Notifier sends notifications after the transactions they announce have
// committed: the first at once, and all that follow within a short pause with one
// statement. A NOTIFY inside a transaction takes a lock that the server holds until the
// commit is durable, so notifying transactions commit one at a time.
//
// Delivery is best effort. A notification is lost if the process dies between
// the commit and the flush or the database does not respond, so every listener
// also polls.
type Notifier struct {
	db    *DB
	pause time.Duration
	log   *slog.Logger

	mu      sync.Mutex
	pending map[Notification]struct{}
	running bool      // a flush is scheduled or running
	flushed time.Time // the end of the last flush
	closed  bool
	flushes sync.WaitGroup
}

// NewNotifier returns a notifier that pauses after each statement. The caller closes
// it before the DB.
func NewNotifier(db *DB, pause time.Duration, log *slog.Logger) *Notifier {
	return &Notifier{db: db, pause: pause, log: log, pending: map[Notification]struct{}{}}
}

// Notify schedules notifications and returns at once. Equal ones of one statement
// are sent once.
func (n *Notifier) Notify(notifications ...Notification) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	for _, one := range notifications {
		n.pending[one] = struct{}{}
	}
	if !n.running && len(n.pending) > 0 {
		n.running = true
		n.flushes.Add(1)
		time.AfterFunc(n.pause-time.Since(n.flushed), n.run)
	}
}

// Close sends what is pending and waits until it is sent. Later notifications
// are dropped.
func (n *Notifier) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.flushes.Wait()
}

// run sends what is pending and schedules the next batch if more arrived
// meanwhile.
func (n *Notifier) run() {
	n.mu.Lock()
	batch := slices.Collect(maps.Keys(n.pending))
	clear(n.pending)
	n.mu.Unlock()
	if err := n.send(batch); err != nil {
		n.log.Warn("dropped notifications; polls will find the changes", "count", len(batch), "err", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flushed = time.Now()
	if len(n.pending) > 0 {
		time.AfterFunc(n.pause, n.run)
		return
	}
	n.running = false
	n.flushes.Done()
}

// send sends a batch with one statement. It does not wait until its commit is durable,
// since notifications do not survive a crash anyway.
func (n *Notifier) send(batch []Notification) error {
	channels, payloads := make([]string, len(batch)), make([]string, len(batch))
	for i, one := range batch {
		channels[i], payloads[i] = one.Channel, one.Payload
	}
	return n.db.Call(context.Background(), "sending notifications", func(ctx context.Context) error {
		_, err := n.db.pool.Exec(ctx,
			`SELECT pg_notify(n.channel, n.payload)
			FROM set_config('synchronous_commit', 'off', true), unnest($1::text[], $2::text[]) AS n (channel, payload)`, channels, payloads)
		return err
	})
}
