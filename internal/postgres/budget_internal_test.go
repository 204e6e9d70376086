package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
)

// hangingServer accepts connections and never ends one. It answers the first question for its
// timeline, as a service without timelines, and LISTEN only if answers is set. Each connection
// sends a value to connected.
func hangingServer(t *testing.T, answers bool) (url string, connected <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	connections := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			connections <- struct{}{}
			go hang(conn, answers)
		}
	}()
	return "postgres://u@" + l.Addr().String() + "/d?sslmode=disable&connect_timeout=1", connections
}

func hang(conn net.Conn, answers bool) {
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	asked := false
	for backend.Flush() == nil {
		m, err := backend.Receive()
		if err != nil {
			return
		}
		switch m.(type) {
		case *pgproto3.Sync:
			if !asked {
				backend.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42883", Message: "no timelines"})
				backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			}
			asked = true
		case *pgproto3.Query:
			if answers {
				backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("LISTEN")})
				backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			}
		}
	}
}

// A server that accepts connections and then hangs blocks neither the listener,
// which connects again, nor its stop.
func TestListenerIsNotBlockedByHangingServer(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{false, true} {
		t.Run(fmt.Sprint("answers ", answers), func(t *testing.T) {
			t.Parallel()
			url, connected := hangingServer(t, answers)
			listening := make(chan struct{}, 1)
			l, err := NewListener(ListenConfig{URL: url, Channels: []string{"c"}, Log: slog.New(slog.DiscardHandler),
				OnConnect: func() { listening <- struct{}{} }, OnNotify: func(Notification) {}})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				_ = l.Run(ctx)
			}()
			harness.Receive(t, "a connection", connected)
			if answers {
				harness.Receive(t, "the LISTEN", listening)
			} else {
				harness.Receive(t, "a second connection, because LISTEN has a deadline", connected)
			}
			cancel()
			harness.Receive(t, "the stop, which the server does not delay", stopped)
		})
	}
}
