package nodeapi_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// dial connects to the site from a loopback address.
func (s *site) dial(from string) net.Conn {
	s.tb.Helper()
	u, err := url.Parse(s.base)
	require.NoError(s.tb, err)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(s.tb.Context(), "tcp", net.JoinHostPort("127.0.0.1", u.Port()))
	require.NoError(s.tb, err)
	s.tb.Cleanup(func() { conn.Close() })
	return conn
}

// insecure is the configuration of a client that only completes the handshake.
func insecure() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// Clients without a certificate that keep connections open neither end a node's poll nor
// keep another node from connecting: the oldest of their connections are closed.
func TestConnectionsOfUnknownClients(t *testing.T) {
	const total = 32
	s := newSiteWith(t, &fakeStore{}, func(c *nodeapi.Config) { c.Connections = total })
	polled := s.poll(t.Context())
	require.Eventually(t, func() bool { return s.wakes.waiting(s.node.NodeID) == 1 }, harness.Timeout, time.Millisecond)
	closed := make(chan struct{}, 4*total)
	for i := range 4 * total {
		conn := tls.Client(s.dial("127.0.0."+string(rune('1'+i%8))), insecure())
		_ = conn.HandshakeContext(t.Context()) // a connection of a full address may be closed already
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
	for range 4*total - total/2 {
		harness.Receive(t, "an idle connection is closed", closed)
	}
	other := *s
	other.node.NodeID = schema.NewID()
	for range 5 {
		require.Equal(t, http.StatusNoContent, call(t, other.client(other.cert()), http.MethodGet, other.path("/tasks/wait"), nil).status)
	}
	assert.Positive(t, s.metric("gpuaas_node_api_limited_total", "connections"))
	select {
	case a := <-polled:
		require.Fail(t, "the poll ended", "%d %s", a.status, a.body)
	default:
	}
}

// One address without a certificate has an eighth of the connections, and one node has a
// limit of its own.
func TestConnectionsOfOneClient(t *testing.T) {
	s := newSiteWith(t, &fakeStore{}, func(c *nodeapi.Config) { c.Connections = 800 })
	first := tls.Client(s.dial("127.0.0.2"), insecure())
	require.NoError(t, first.HandshakeContext(t.Context()))
	for range 100 {
		require.NoError(t, tls.Client(s.dial("127.0.0.2"), insecure()).HandshakeContext(t.Context()))
	}
	_, err := io.ReadAll(first)
	require.NoError(t, err, "the oldest was closed")
	assert.InDelta(t, 1, s.metric("gpuaas_node_api_limited_total", "address_connections"), 0)

	cert := s.cert()
	for range 97 {
		require.Equal(t, http.StatusNoContent, call(t, s.client(cert), http.MethodGet, s.path("/tasks/wait"), nil).status)
	}
	s.node.Incarnation = 2
	require.Equal(t, http.StatusNoContent, call(t, s.client(s.cert()), http.MethodGet, s.path("/tasks/wait"), nil).status)
	assert.InDelta(t, 1, s.metric("gpuaas_node_api_limited_total", "node_connections"), 0, "a reissued node has a limit of its own")
}

// A load balancer in the configured networks sends the client's address in a PROXY
// protocol header of version 2, and must send one. From any other address, and in any
// other version, the header ends the connection.
func TestProxyProtocol(t *testing.T) {
	s := newSite(t, &fakeStore{})
	header := proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.ParseIP("198.51.100.7"), Port: 40000}, &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 443})
	old := *header
	old.Version = 1
	for name, c := range map[string]struct {
		from   string
		header *proxyproto.Header
		remote string // "" if the connection is refused
	}{
		"from the load balancer":   {proxyAddress, header, "198.51.100.7"},
		"a node itself":            {"127.0.0.3", nil, "127.0.0.3"},
		"forged by another client": {"127.0.0.3", header, ""},
		"missing":                  {proxyAddress, nil, ""},
		"version 1":                {proxyAddress, &old, ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(c.from)
			if c.header != nil {
				_, err := c.header.WriteTo(conn)
				require.NoError(t, err)
			}
			client := tls.Client(conn, insecure())
			err := client.HandshakeContext(t.Context())
			if c.remote == "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			_, err = io.WriteString(client, "GET /internal/v1/packages/"+schema.NewID()+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			require.NoError(t, err)
			_, err = io.ReadAll(client)
			require.NoError(t, err)
			assert.Contains(t, s.log.String(), `"remote":"`+c.remote+`:`)
		})
	}
}
