package fleet

import (
	"context"
	"net"
	"sync"
)

// lines are an agent's open connections, so that they can be torn: an agent that
// is killed leaves none behind.
type lines struct {
	mu   sync.Mutex
	open map[*line]struct{}
}

type line struct {
	net.Conn
	of *lines
}

func (l *lines) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n := &line{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*line]struct{}{}
	}
	l.open[n] = struct{}{}
	return n, nil
}

// Close implements net.Conn.
func (n *line) Close() error {
	n.of.mu.Lock()
	delete(n.of.open, n)
	n.of.mu.Unlock()
	return n.Conn.Close()
}

// tear closes all of them.
func (l *lines) tear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.open {
		n.Conn.Close()
	}
	clear(l.open)
}
