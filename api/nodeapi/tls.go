package nodeapi

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
)

// pingAfter is the idle time after which an HTTP/2 connection is pinged, to detect
// the vanished peer of an open poll.
const pingAfter = 45 * time.Second

// handshakeConfig is a handshake configuration that lists the CAs of a pool.
type handshakeConfig struct {
	cas *caPool
	cfg *tls.Config
}

// TLSConfig returns the listener's TLS configuration. The handshake requests a
// client certificate and does not verify it: handlers verify it for each
// request and return the reason of a rejection. The node CAs are sent as a hint,
// so that an agent can detect that its issuer is not among them; retired ones
// too, so that their certificates are presented and rejected with the reason.
// Sessions cannot be resumed.
func (a *API) TLSConfig(serverCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	base := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2", "http/1.1"},
		GetCertificate:         serverCertificate,
	}
	cfg := base.Clone()
	var last atomic.Pointer[handshakeConfig] // shared, because every connection keeps its configuration
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		cas, err := a.nodeCAs(hello.Context())
		if err != nil {
			// Without the hint the agent sends any certificate; the handler verifies it.
			a.cfg.Log.Warn("cannot read the node CAs for a handshake", slog.Any("err", err))
			return nil, nil
		}
		h := last.Load()
		if h == nil || h.cas != cas {
			h = &handshakeConfig{cas, base.Clone()}
			h.cfg.ClientCAs = cas.hint
			last.Store(h)
		}
		return h.cfg, nil
	}
	return cfg
}

// Server returns the listener's HTTP server. Its shutdown first ends open polls
// with 204.
func (a *API) Server(serverCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	s := edge.Server(a.cfg.Log, a.Handler())
	s.TLSConfig = a.TLSConfig(serverCertificate)
	s.ConnContext = withConnection
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 16, SendPingTimeout: pingAfter, PingTimeout: 15 * time.Second}
	s.RegisterOnShutdown(a.EndPolls)
	return s
}
