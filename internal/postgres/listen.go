package postgres

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	// listenCheck is the interval between two checks of the connection.
	listenCheck = 10 * time.Second
	// leaderLock is the advisory lock that the leading listener holds.
	leaderLock = "gpuaas-leader"
	// listenBackoffMin and Max bound the pause between two attempts to connect.
	listenBackoffMin = 100 * time.Millisecond
	listenBackoffMax = 5 * time.Second
	// awaitEvery is the interval between two looks at the connection in Await.
	awaitEvery = 10 * time.Millisecond
)

// ListenConfig sets up a Listener. The callbacks run on Run's goroutine.
type ListenConfig struct {
	// URL is the database to listen on.
	URL string
	// Channels are the channels to listen on.
	Channels []string
	// OnConnect is called after each connection: notifications sent before it
	// are lost.
	OnConnect func()
	// OnNotify is called for each notification.
	OnNotify func(Notification)
	// CheckEvery is the interval between two checks. Defaults to 10 s.
	CheckEvery time.Duration
	// Failover is shared with the pools of the process. Defaults to one of its own.
	Failover *Failover
	// Log gets a warning for each lost connection.
	Log *slog.Logger
}

// Listener receives notifications on one connection of its own and reconnects
// with a backoff. One of the listeners on a database leads: it holds an advisory lock
// on its connection. When it loses the connection, another one leads after its next
// check.
type Listener struct {
	ListenConfig
	conn      *pgx.ConnConfig
	leading   atomic.Bool
	connected atomic.Bool
}

// NewListener returns a listener that connects in Run. A malformed URL is
// KindInvalidRequest.
func NewListener(c ListenConfig) (*Listener, error) {
	conn, err := ownConn(c.URL, "gpuaas-listener")
	if err != nil {
		return nil, err
	}
	c.CheckEvery, c.Failover = cmp.Or(c.CheckEvery, listenCheck), cmp.Or(c.Failover, new(Failover))
	return &Listener{ListenConfig: c, conn: conn}, nil
}

// Leading reports whether this listener leads now.
func (l *Listener) Leading() bool { return l.leading.Load() }

// Await waits until the listener receives notifications. It returns KindServiceUnavailable if the
// context ends first.
func (l *Listener) Await(ctx context.Context) error {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for !l.connected.Load() {
		select {
		case <-ctx.Done():
			return schema.NewError(schema.KindServiceUnavailable, "there is no connection for notifications of the database")
		case <-tick.C:
		}
	}
	return nil
}

// Run listens until the context ends and returns the context's error.
func (l *Listener) Run(ctx context.Context) error {
	db := &DB{address: address(l.conn)}
	pauses := &backoff.ExponentialBackOff{InitialInterval: listenBackoffMin, MaxInterval: listenBackoffMax, Multiplier: 2}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		started := time.Now()
		err := l.listen(ctx)
		if time.Since(started) > listenBackoffMax {
			pauses.Reset()
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, pause time.Duration) {
		l.Log.Warn("lost the connection for notifications", "err", db.Interpret(err, "listening"), "retry_in", pause)
	}))
	return err
}

// listen uses one connection until it fails.
func (l *Listener) listen(ctx context.Context) error {
	config := l.conn.Copy()
	err := l.Failover.prepare(ctx, config)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	for _, channel := range l.Channels {
		err := within(ctx, conn, func(ctx context.Context) error {
			_, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize())
			return err
		})
		if err != nil {
			return err
		}
	}
	l.OnConnect()
	l.connected.Store(true)
	defer l.connected.Store(false)
	defer l.leading.Store(false)
	for {
		if err := l.lead(ctx, conn); err != nil {
			return err
		}
		if err := l.deliver(ctx, conn); err != nil {
			return err
		}
	}
}

// lead checks the connection, and takes the leader's lock if it is free. A connection to a
// primary that a failover replaced may work as before, but no process notifies there.
func (l *Listener) lead(ctx context.Context, conn *pgx.Conn) error {
	return within(ctx, conn, func(ctx context.Context) error {
		if err := l.Failover.check(ctx, conn.PgConn()); err != nil || l.Leading() {
			return err
		}
		var got bool
		err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", leaderLock).Scan(&got)
		l.leading.Store(got)
		return err
	})
}

// deliver delivers notifications until the next check is due.
func (l *Listener) deliver(ctx context.Context, conn *pgx.Conn) error {
	waiting, cancel := context.WithTimeout(ctx, l.CheckEvery)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err == nil:
			l.OnNotify(Notification{n.Channel, n.Payload})
		case ctx.Err() != nil || waiting.Err() == nil || conn.IsClosed():
			return err
		default:
			return nil
		}
	}
}

// ownConn configures a connection outside the pool. Its connect timeout bounds
// each of its calls too.
func ownConn(url, name string) (*pgx.ConnConfig, error) {
	pc, err := pgxpool.ParseConfig(url) // the URL may have parameters of the pool, which Postgres would reject
	if err != nil {
		return nil, errMalformedURL()
	}
	c := pc.ConnConfig
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, connectTimeout)
	c.RuntimeParams["application_name"] = name
	return c, nil
}

// within makes one call on a connection of its own.
func within(ctx context.Context, conn *pgx.Conn, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, conn.Config().ConnectTimeout)
	defer cancel()
	return call(ctx)
}

// closeConn closes a connection of its own, even when ctx has ended. The server
// releases its locks and drops its subscriptions either way.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	_ = within(context.WithoutCancel(ctx), conn, conn.Close)
}
