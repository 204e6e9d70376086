package nodeapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// newPackage returns the path of a package, and the change of a configuration that serves it.
func newPackage(t *testing.T, size int64) (path string, serve func(*nodeapi.Config)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "package")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, size))
	return "/internal/v1/packages/p", func(c *nodeapi.Config) {
		c.Packages = map[string]nodeapi.Package{"p": {Path: file, Size: size}}
	}
}

// stalledWriter is the response to a client that does not read a package until release is closed.
type stalledWriter struct {
	*httptest.ResponseRecorder
	release chan struct{}
}

func (w stalledWriter) Write(b []byte) (int, error) {
	if w.Code == http.StatusOK {
		<-w.release
	}
	return w.ResponseRecorder.Write(b)
}

// One address cannot have all downloads, and all addresses together leave some to nodes. A
// node, an IPv6 network of 64 bits and one of 48 bits have a share each.
func TestDownloadShares(t *testing.T) {
	path, serve := newPackage(t, 1)
	synctest.Test(t, func(t *testing.T) {
		s, api := newAPI(t, &fakeStore{}, serve)
		handler, release := api.Handler(), make(chan struct{})
		begin := func(remote string, cert *tls.Certificate) int {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr, r.TLS = remote+":1", &tls.ConnectionState{}
			if cert != nil {
				r.TLS.PeerCertificates = []*x509.Certificate{cert.Leaf}
			}
			w := stalledWriter{httptest.NewRecorder(), release}
			go handler.ServeHTTP(w, r)
			synctest.Wait()
			return w.Code
		}
		begun := func(requests int, remote func(i int) string) (n int) {
			for i := range requests {
				if begin(remote(i), nil) == http.StatusOK {
					n++
				}
			}
			return n
		}
		node := func(id string) *tls.Certificate {
			return s.nodeCA.leaf(t, trust.Identity{Env: env, NodeID: id, Incarnation: 1}, nil)
		}
		assert.Equal(t, 8, begun(20, func(int) string { return "192.0.2.1" }), "one address")
		assert.Equal(t, 8, begun(20, func(i int) string { return fmt.Sprintf("[2001:db8::%x]", i+1) }), "one network of 64 bits")
		assert.Equal(t, 8, begun(20, func(i int) string { return fmt.Sprintf("[2001:db8:0:%x::1]", i+1) }), "the rest of its network of 48 bits")
		assert.Equal(t, 24, begun(40, func(i int) string { return fmt.Sprintf("198.51.100.%d", i) }), "what is left to clients without a certificate")
		assert.Positive(t, s.metric("gpuaas_node_api_limited_total", "client_downloads"))
		assert.InDelta(t, 16, s.metric("gpuaas_node_api_limited_total", "downloads"), 0)

		cert := s.cert()
		assert.Equal(t, []int{200, 200, 429}, []int{begin("192.0.2.1", cert), begin("192.0.2.1", cert), begin("192.0.2.1", cert)}, "a node")
		other := newCA(t, "another CA").leaf(t, s.node, nil)
		assert.Equal(t, 429, begin("203.0.113.1", other), "a certificate of another CA")
		for range 14 {
			assert.Equal(t, 200, begin("192.0.2.1", node(schema.NewID())))
		}
		assert.Equal(t, 429, begin("192.0.2.1", node(schema.NewID())))

		close(release)
		synctest.Wait()
		assert.Equal(t, 200, begin("192.0.2.1", nil), "the downloads have ended")
	})
}

// A client that stops reading is cut, and its share is free again. One that reads slowly
// receives the whole package, however long that takes.
func TestSlowDownloads(t *testing.T) {
	const chunk, chunks = 128 << 10, 96 // more than a client's window in HTTP/2
	path, serve := newPackage(t, chunk*chunks)
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, api := newAPI(t, &fakeStore{}, serve)
				client := s.pipeClient(api, h2)
				open := func() io.Reader {
					res, err := client.Get("https://localhost" + path)
					require.NoError(t, err)
					t.Cleanup(func() { _ = res.Body.Close() })
					require.Equal(t, http.StatusOK, res.StatusCode)
					require.Equal(t, name, res.Proto)
					return res.Body
				}
				var stalled []io.Reader
				for range 8 {
					stalled = append(stalled, open())
				}
				<-time.After(21 * time.Second)
				for _, body := range stalled {
					_, err := io.Copy(io.Discard, body)
					require.Error(t, err, "the download was cut")
				}
				slow, begun := open(), time.Now()
				for range chunks {
					<-time.After(19 * time.Second)
					_, err := io.CopyN(io.Discard, slow, chunk)
					require.NoError(t, err)
				}
				assert.Greater(t, time.Since(begun), 15*time.Minute)
			})
		})
	}
}

// pipes is a listener for connections in memory, whose deadlines have the time of a bubble.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p.conns)
	return nil
}

// pipeClient serves the API until the test ends, and returns a client of it whose connections
// are in memory.
func (s *site) pipeClient(api *nodeapi.API, h2 bool) *http.Client {
	ln, cert := pipes{conns: make(chan net.Conn)}, s.serverCA.server(s.tb)
	server := api.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil })
	go func() { _ = server.ServeTLS(ln, "", "") }()
	pool := x509.NewCertPool()
	pool.AddCert(s.serverCA.cert)
	transport := &http.Transport{ForceAttemptHTTP2: h2, TLSClientConfig: &tls.Config{RootCAs: pool},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			ln.conns <- far
			return near, nil
		}}
	s.tb.Cleanup(func() {
		_ = server.Close()
		transport.CloseIdleConnections()
	})
	return &http.Client{Transport: transport}
}
