package nodeapi

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// pingAfter is how long an HTTP/2 connection is believed without a frame of its
// peer: longer than the time between two heartbeats.
const pingAfter = wire.HeartbeatInterval + 15*time.Second

// naming is a handshake's settings that name the CAs of a trust.
type naming struct {
	known *caPool
	cfg   *tls.Config
}

// TLSConfig returns the listener's TLS settings. A client certificate is asked
// for and not verified in the handshake: the handlers verify it for each
// request, which also gives a caller the reason of a refusal. The node CAs are
// sent as a hint, so that an agent can see that its issuer is not among them;
// retired ones too, whose certificates are shown and refused with the reason.
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
	var named atomic.Pointer[naming] // of the last handshake: every connection keeps its configuration
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		known, err := a.generations(hello.Context())
		if err != nil {
			// Without the hint every certificate is sent, and judged later.
			a.cfg.Log.Warn("reading node CAs for a handshake", slog.Any("err", err))
			return nil, nil
		}
		n := named.Load()
		if n == nil || n.known != known {
			n = &naming{known, base.Clone()}
			n.cfg.ClientCAs = known.named
			named.Store(n)
		}
		return n.cfg, nil
	}
	return cfg
}

// Server returns the HTTP server of the listener. Shutting it down ends open
// polls with 204 first.
func (a *API) Server(serverCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	s := edge.Server(a.cfg.Log, a.Handler())
	s.TLSConfig = a.TLSConfig(serverCertificate)
	s.ConnContext = remembering
	// A parked poll's peer that vanished is noticed by the ping; one that sends its
	// heartbeats is sent none.
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 16, SendPingTimeout: pingAfter, PingTimeout: 15 * time.Second}
	s.RegisterOnShutdown(a.EndPolls)
	return s
}
