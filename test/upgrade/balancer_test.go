package upgrade

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// balancer forwards TCP connections to API replicas in turn, as the load balancer of an installation
// does. A replica that is stopped leaves the list first.
type balancer struct {
	listener net.Listener

	mu       sync.Mutex
	backends []string
	next     int
}

// newBalancer listens on a free port until the end of the test.
func newBalancer(t *testing.T) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{listener: l}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go b.forward(conn)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return b
}

// address is the balancer's address with the host name that the API's certificate has.
func (b *balancer) address() string {
	_, port, _ := net.SplitHostPort(b.listener.Addr().String())
	return net.JoinHostPort("localhost", port)
}

// set replaces the list of replicas.
func (b *balancer) set(backends []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = backends
}

// dial connects to the next replica that accepts.
func (b *balancer) dial() (net.Conn, error) {
	b.mu.Lock()
	all, first := b.backends, b.next
	b.next++
	b.mu.Unlock()
	err := errors.New("no replica")
	for i := range all {
		var conn net.Conn
		if conn, err = net.Dial("tcp", strings.TrimPrefix(all[(first+i)%len(all)], "http://")); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (b *balancer) forward(client net.Conn) {
	defer client.Close()
	server, err := b.dial()
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // either end may close
		done <- struct{}{}
	}
	go pipe(server, client)
	go pipe(client, server)
	<-done
}
