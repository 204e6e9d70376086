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
// committed: all of a short window with one statement. A NOTIFY inside a
// transaction takes a lock that the server holds until the commit is durable, so
// notifying transactions commit one at a time.
//
// Delivery is best effort. A notification is lost if the process dies between
// the commit and the flush or the database does not respond, so every listener
// also polls.
type Notifier struct {
	db     *DB
	window time.Duration
	log    *slog.Logger

	mu      sync.Mutex
	pending map[Notification]struct{}
	running bool // a flush is scheduled or running
	closed  bool
	flushes sync.WaitGroup
}

// NewNotifier returns a notifier that collects notifications for the window
// before it sends them. The caller closes it before the DB.
func NewNotifier(db *DB, window time.Duration, log *slog.Logger) *Notifier {
	return &Notifier{db: db, window: window, log: log, pending: map[Notification]struct{}{}}
}

// Notify schedules notifications and returns at once. Equal ones of one window
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
		time.AfterFunc(n.window, n.run)
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
	if len(n.pending) > 0 {
		time.AfterFunc(n.window, n.run)
		return
	}
	n.running = false
	n.flushes.Done()
}

// send sends a batch with one statement.
func (n *Notifier) send(batch []Notification) error {
	channels, payloads := make([]string, len(batch)), make([]string, len(batch))
	for i, one := range batch {
		channels[i], payloads[i] = one.Channel, one.Payload
	}
	return n.db.Exec(context.Background(), "sending notifications", func(ctx context.Context) error {
		_, err := n.db.pool.Exec(ctx,
			"SELECT pg_notify(n.channel, n.payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)", channels, payloads)
		return err
	})
}
