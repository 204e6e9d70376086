package fleet

import (
	"context"
	"net"
	"sync"
)

// connections are the open connections of an agent. When the agent is killed, all of
// them are closed.
type connections struct {
	mu   sync.Mutex
	open map[*connection]struct{}
}

type connection struct {
	net.Conn
	set *connections
}

func (l *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n := &connection{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*connection]struct{}{}
	}
	l.open[n] = struct{}{}
	return n, nil
}

// Close implements net.Conn.
func (n *connection) Close() error {
	n.set.mu.Lock()
	delete(n.set.open, n)
	n.set.mu.Unlock()
	return n.Conn.Close()
}

// closeAll closes all of them.
func (l *connections) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.open {
		n.Conn.Close()
	}
	clear(l.open)
}
