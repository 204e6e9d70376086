package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// pipeTo returns a transport whose connections lead to serve, which gets each request that arrives.
func pipeTo(t *testing.T, serve func(conn net.Conn)) http.RoundTripper {
	t.Helper()
	dial := func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		go func() {
			for in := bufio.NewReader(theirs); ; {
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				serve(theirs)
			}
		}()
		return ours, nil
	}
	tr := newTransport(dial, nil)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func get(t *testing.T, tr http.RoundTripper) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", http.NoBody)
	require.NoError(t, err)
	return tr.RoundTrip(r)
}

// A server that stops in the middle of a response does not hold a caller whose context has no deadline.
func TestSilentBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := pipeTo(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{") })
		begun := time.Now()
		_, err := Decode[struct{}](get(t, tr))
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: ReasonUnreachable})
		assert.Equal(t, maxSilence, time.Since(begun))
	})
}

// A stream that sends something now and then has no end.
func TestLongStream(t *testing.T) {
	t.Parallel()
	const events = 100
	synctest.Test(t, func(t *testing.T) {
		tr := pipeTo(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
			for range events {
				<-time.After(maxSilence / 2)
				_, _ = io.WriteString(c, ":\n")
			}
			_ = c.Close()
		})
		res, err := get(t, tr)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		assert.Len(t, body, events*len(":\n"))
	})
}

// A request on a connection that was idle has as much time as one on a new connection.
func TestIdleConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		tr := pipeTo(t, func(c net.Conn) {
			if requests++; requests > 1 {
				<-time.After(headerTime - time.Second)
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		})
		for range 2 {
			_, err := Decode[struct{}](get(t, tr))
			require.NoError(t, err)
			<-time.After(http.DefaultTransport.(*http.Transport).IdleConnTimeout - time.Second)
		}
		assert.Equal(t, 2, requests)
	})
}

// The context of the caller explains the end of a body first; what is no JSON is not the fault of the network.
func TestUnreadableBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := pipeTo(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<htm>") })
		_, err := Decode[struct{}](get(t, tr))
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInternal})

		tr = pipeTo(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", http.NoBody)
		require.NoError(t, err)
		_, err = Decode[struct{}](tr.RoundTrip(r))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, isResponse := errors.AsType[*Error](err)
		assert.False(t, isResponse)
	})
}
