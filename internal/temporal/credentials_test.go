package temporal

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// variables is an environment.
type variables map[string]string

func (v variables) LookupEnv(name string) (string, bool) { value, set := v[name]; return value, set }

func (v variables) Environ() (out []string) {
	for name, value := range v {
		out = append(out, name+"="+value)
	}
	return out
}

// with returns the environment with a change; an empty value unsets.
func (v variables) with(name, value string) variables {
	out := maps.Clone(v)
	if out[name] = value; value == "" {
		delete(out, name)
	}
	return out
}

// ca issues certificates.
type ca struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T) *ca {
	t.Helper()
	c := &ca{t: t}
	_, c.cert, c.key = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true})
	return c
}

func (c *ca) sign(template *x509.Certificate) ([]byte, *x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	parent, signer := c.cert, c.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(c.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(c.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert, key
}

// pair writes a certificate for the name and its key to files.
func (c *ca) pair(certFile, keyFile string) {
	c.t.Helper()
	cert, _, key := c.sign(&x509.Certificate{DNSNames: []string{"temporal.test"}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c.t, err)
	require.NoError(c.t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(c.t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

func (c *ca) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	return pool
}

// tlsEndpoint is a TLS endpoint in front of the real server.
type tlsEndpoint struct {
	address string
	clients atomic.Pointer[x509.CertPool] // whose certificates it requires
	mu      sync.Mutex
	open    []net.Conn
}

func newEndpoint(t *testing.T, target string, authority *ca, dir string) *tlsEndpoint {
	t.Helper()
	e := &tlsEndpoint{}
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	authority.pair(cert, key)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, ClientCAs: e.clients.Load()}
		if c.ClientCAs != nil {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return c, nil
	}})
	require.NoError(t, err)
	e.address = listener.Addr().String()
	t.Cleanup(func() { _ = listener.Close(); e.drop() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go e.forward(conn, target)
		}
	}()
	return e
}

func (e *tlsEndpoint) forward(conn net.Conn, target string) {
	defer conn.Close()
	back, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	e.mu.Lock()
	e.open = append(e.open, conn, back)
	e.mu.Unlock()
	go func() { _, _ = io.Copy(conn, back); _ = conn.Close() }()
	_, _ = io.Copy(back, conn)
	_ = back.Close()
}

// drop closes every connection.
func (e *tlsEndpoint) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.open {
		_ = c.Close()
	}
	e.open = nil
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority, next := newCA(t), newCA(t)
	bundle, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	require.NoError(t, os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}), 0o600))
	authority.pair(cert, key)
	e := newEndpoint(t, server.Address(t), authority, dir)
	e.clients.Store(authority.pool())
	env := variables{"TEMPORAL_ADDRESS": e.address, "TEMPORAL_TLS_SERVER_NAME": "temporal.test", "TEMPORAL_TLS_SERVER_CA_CERT_PATH": bundle,
		"TEMPORAL_TLS_CLIENT_CERT_PATH": cert, "TEMPORAL_TLS_CLIENT_KEY_PATH": key}
	connect := func(env variables) *Client {
		c, err := dial(Config{}, env)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	c := connect(env)
	require.NoError(t, c.Healthy(t.Context()))

	for name, bad := range map[string]variables{
		"no client certificate": env.with("TEMPORAL_TLS_CLIENT_CERT_PATH", "").with("TEMPORAL_TLS_CLIENT_KEY_PATH", ""),
		"another server name":   env.with("TEMPORAL_TLS_SERVER_NAME", "other.test"),
		"an unknown CA":         env.with("TEMPORAL_TLS_SERVER_CA_CERT_PATH", ""),
	} {
		e := schema.AsError(connect(bad).Healthy(t.Context()))
		require.NotNil(t, e, name)
		require.Equal(t, "temporal_tls", e.Reason, "%s: %v", name, e)
		require.Contains(t, e.Next, "TEMPORAL_TLS_", name)
	}

	next.pair(cert, key) // a rotated certificate, which alone is valid from here on
	e.clients.Store(next.pool())
	e.drop()
	harness.Eventually(t, "a connection with the new certificate", func() bool { return c.Healthy(t.Context()) == nil })
}

// A server that rejects the client after the handshake may close the connection without an
// alert that reaches the client.
func TestClosedAfterHandshake(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*tls.Conn){
		"closed": func(c *tls.Conn) { _ = c.Close() },
		"reset": func(c *tls.Conn) {
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
			_ = c.NetConn().Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, authority := t.TempDir(), newCA(t)
			bundle, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
			require.NoError(t, os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}), 0o600))
			authority.pair(cert, key)
			pair, err := tls.LoadX509KeyPair(cert, key)
			require.NoError(t, err)
			listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
			require.NoError(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_ = conn.(*tls.Conn).HandshakeContext(t.Context())
					end(conn.(*tls.Conn))
				}
			}()
			c, err := dial(Config{}, variables{"TEMPORAL_ADDRESS": listener.Addr().String(),
				"TEMPORAL_TLS_SERVER_NAME": "temporal.test", "TEMPORAL_TLS_SERVER_CA_CERT_PATH": bundle})
			require.NoError(t, err)
			t.Cleanup(c.Close)
			e := schema.AsError(c.Healthy(t.Context()))
			require.Equal(t, "temporal_tls", e.Reason, "%v", e)
			require.Contains(t, e.Message, "closed the connection after the TLS handshake; it may require a client certificate")
			require.Contains(t, e.Next, "TEMPORAL_TLS_")
		})
	}
}

// A write to a connection that the server closed fails before the alert is read.
func TestInterpretBrokenTLS(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`connection error: desc = "transport: failed to write client preface: write tcp 127.0.0.1:1->127.0.0.1:2: write: broken pipe"`: "temporal_tls",
		`connection error: desc = "error reading server preface: read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer"`:   "temporal_tls",
		`connection error: desc = "transport: write tcp 127.0.0.1:1->127.0.0.1:2: write: connection reset by peer"`:                    "temporal_tls",
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                 "temporal_unreachable",
		`error reading from server: read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer`:                                 "temporal_unreachable",
	} {
		err := status.Error(codes.Unavailable, text)
		require.Equal(t, want, schema.AsError((&connection{secure: true}).interpret(err, "trying")).Reason, text)
		require.Equal(t, "temporal_unreachable", schema.AsError((&connection{}).interpret(err, "trying")).Reason, text)
	}
}

// An API key turns TLS on, so that it is never sent in the clear by default.
func TestAPIKeyNeedsTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority, file := newCA(t), filepath.Join(dir, "key")
	bundle := filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}), 0o600))
	e := newEndpoint(t, server.Address(t), authority, dir)
	env := variables{"TEMPORAL_ADDRESS": e.address, "TEMPORAL_API_KEY_FILE": file,
		"TEMPORAL_TLS_SERVER_NAME": "temporal.test", "TEMPORAL_TLS_SERVER_CA_CERT_PATH": bundle}
	_, err := dial(Config{}, env)
	require.ErrorContains(t, err, file, "the file is missing")
	require.NoError(t, os.WriteFile(file, []byte("key-of-this-test-0123456789\n"), 0o600))
	c, err := dial(Config{}, env)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.Healthy(t.Context()))
	require.Error(t, c.scanner.Check("the key-of-this-test-0123456789"), "the key must not enter Temporal as data")
	require.NoError(t, os.Remove(file))
	require.Equal(t, "temporal_unauthenticated", schema.AsError(c.Healthy(t.Context())).Reason)

	plain, err := dial(Config{Address: server.Address(t)}, variables{"TEMPORAL_API_KEY": "key-of-this-test-0123456789"})
	require.NoError(t, err)
	t.Cleanup(plain.Close)
	require.Equal(t, "temporal_tls", schema.AsError(plain.Healthy(t.Context())).Reason)
	_, err = dial(Config{}, env.with("TEMPORAL_API_KEY", "key-of-this-test-0123456789"))
	require.ErrorContains(t, err, "either")
	require.NotContains(t, err.Error(), "key-of-this-test-0123456789")
}
