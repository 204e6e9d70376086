package nodeapi

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
)

// The limits of connections, in parts of the configured total.
const (
	// DefaultConnections is the default of Config.Connections.
	DefaultConnections = 16384
	// anonymousPart and addressPart are the divisors of the total for connections on which
	// no request was authenticated: of all clients, and of one address. There are so many
	// while a fleet reconnects.
	anonymousPart = 2
	addressPart   = 8
	// maxNodeConnections is how many connections one node may have. An agent opens one for
	// each of its requests in progress, at most wire.MaxHeldTasks results among them.
	maxNodeConnections = 96
	// proxyHeaderTimeout is a load balancer's time to send the header.
	proxyHeaderTimeout = 10 * time.Second
)

var errProxyVersion = errors.New("the PROXY protocol header is not of version 2")

// connections limits the open connections. A client without a certificate cannot keep nodes
// out: a connection belongs to a node from its first authenticated request on, and if there
// are too many others, the oldest one is closed.
type connections struct {
	metrics Metrics
	max     int

	mu        sync.Mutex
	open      int
	anonymous *list.List // of *connection, oldest first
	addresses map[string]*list.List
	nodes     map[string]*list.List
}

// connection is an accepted connection. Its first Read, in the goroutine that serves it,
// determines the client's address, which a load balancer may have to send.
type connection struct {
	net.Conn
	all    *connections
	admit  sync.Once
	closer sync.Once

	// Guarded by connections.mu: the lists that have the connection, with its place.
	places map[*list.List]*list.Element
	key    string // of addresses or nodes
	node   bool
	closed bool
}

func newConnections(total int, m Metrics) *connections {
	return &connections{metrics: m, max: total, anonymous: list.New(), addresses: map[string]*list.List{}, nodes: map[string]*list.List{}}
}

// limitedListener accepts connections within the limits.
type limitedListener struct {
	net.Listener
	all *connections
}

// Listener limits the connections of ln. Connections from the networks of proxies must
// begin with a PROXY protocol header of version 2, whose address replaces theirs. From any
// other address such a header fails the TLS handshake.
func (a *API) Listener(ln net.Listener, proxies []netip.Prefix) net.Listener {
	if len(proxies) > 0 {
		ln = &proxyproto.Listener{Listener: ln, ReadHeaderTimeout: proxyHeaderTimeout,
			ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
				if from, ok := parseRemote(addressOf(o.Upstream)); ok {
					for _, p := range proxies {
						if p.Contains(from) {
							return proxyproto.REQUIRE, nil
						}
					}
				}
				return proxyproto.SKIP, nil
			},
			ValidateHeader: func(h *proxyproto.Header) error {
				if h.Version != 2 {
					return errProxyVersion
				}
				return nil
			}}
	}
	return &limitedListener{ln, a.connections}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.all.add(conn); c != nil {
			return c, nil
		}
		_ = conn.Close() // over the limit
	}
}

// add counts a connection, nil if there are too many that belong to nodes.
func (l *connections) add(conn net.Conn) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.anonymous.Len() >= l.max/anonymousPart || l.open >= l.max {
		l.metrics.Limited("connections")
		if l.anonymous.Len() == 0 {
			return nil
		}
		l.evict(l.anonymous)
	}
	c := &connection{Conn: conn, all: l, places: map[*list.List]*list.Element{}}
	l.open++
	c.enter(l.anonymous)
	return c
}

// evict closes the oldest connection of a list.
func (l *connections) evict(from *list.List) {
	c, _ := from.Front().Value.(*connection)
	l.forget(c)
	_ = c.Conn.Close() // its server finds it closed
}

// forget removes a connection from all counts.
func (l *connections) forget(c *connection) {
	if c.closed {
		return
	}
	c.closed = true
	l.open--
	c.leave()
}

// enter adds the connection to a list.
func (c *connection) enter(to *list.List) { c.places[to] = to.PushBack(c) }

// leave removes the connection from its lists.
func (c *connection) leave() {
	for in, at := range c.places {
		in.Remove(at)
	}
	clear(c.places)
	for _, byKey := range []map[string]*list.List{c.all.addresses, c.all.nodes} {
		if in := byKey[c.key]; in != nil && in.Len() == 0 {
			delete(byKey, c.key)
		}
	}
}

// enterKey adds the connection to the list of a key, and closes the oldest one of the list
// if it has more than limit.
func (c *connection) enterKey(byKey map[string]*list.List, key string, limit int, name string) {
	c.key = key
	if byKey[key] == nil {
		byKey[key] = list.New()
	}
	c.enter(byKey[key])
	if byKey[key].Len() > limit {
		c.all.metrics.Limited(name)
		c.all.evict(byKey[key])
	}
}

// Read implements net.Conn.
func (c *connection) Read(b []byte) (int, error) {
	c.admit.Do(func() {
		key := limitKey(addressOf(c.RemoteAddr()))
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		if !c.closed && !c.node {
			c.enterKey(c.all.addresses, key, c.all.max/addressPart, "address_connections")
		}
	})
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.closer.Do(func() {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		c.all.forget(c)
	})
	return c.Conn.Close()
}

// identify makes the connection one of a node, named by the URI of its certificate.
func (c *connection) identify(node string) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.closed || c.node {
		return
	}
	c.leave()
	c.node = true
	c.enterKey(c.all.nodes, node, maxNodeConnections, "node_connections")
}

// connectionOf returns the limited connection below a TLS connection, nil without one.
func connectionOf(conn net.Conn) *connection {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, _ := conn.(*connection)
	return c
}

// withConnection is the server's ConnContext.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, certificateCacheKey{}, &certificateCache{conn: connectionOf(conn)})
}

// addressOf returns the host of an address.
func addressOf(a net.Addr) string {
	if host, _, err := net.SplitHostPort(a.String()); err == nil {
		return host
	}
	return a.String()
}
