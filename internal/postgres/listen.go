package postgres

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
)

const (
	// listenCheck is how long a connection may be silent before it is pinged.
	listenCheck = 15 * time.Second
	// listenBackoffMin and Max bound the pause between two attempts to connect.
	listenBackoffMin = 100 * time.Millisecond
	listenBackoffMax = 5 * time.Second
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
	// CheckEvery is how long the connection may be silent before it is pinged.
	// Defaults to 15 s.
	CheckEvery time.Duration
	// Log gets a warning for each lost connection.
	Log *slog.Logger
}

// Listener receives notifications on one connection of its own and reconnects
// with a backoff.
type Listener struct {
	ListenConfig
	conn *pgx.ConnConfig
}

// NewListener returns a listener that connects in Run. A malformed URL is
// KindInvalidRequest.
func NewListener(c ListenConfig) (*Listener, error) {
	conn, err := ownConn(c.URL, "gpuaas-listener")
	if err != nil {
		return nil, err
	}
	if c.CheckEvery <= 0 {
		c.CheckEvery = listenCheck
	}
	return &Listener{c, conn}, nil
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
	conn, err := pgx.ConnectConfig(ctx, l.conn)
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
	for {
		if err := l.wait(ctx, conn); err != nil {
			return err
		}
	}
}

// wait delivers one notification, or pings a connection that has been silent
// for CheckEvery.
func (l *Listener) wait(ctx context.Context, conn *pgx.Conn) error {
	waiting, cancel := context.WithTimeout(ctx, l.CheckEvery)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		l.OnNotify(Notification{n.Channel, n.Payload})
		return nil
	case ctx.Err() != nil || waiting.Err() == nil || conn.IsClosed():
		return err
	}
	return within(ctx, conn, conn.Ping)
}

// ownConn configures a connection outside the pool. Its connect timeout bounds
// each of its calls too.
func ownConn(url, name string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errMalformedURL()
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
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
