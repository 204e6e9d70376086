package edge

import (
	"log/slog"
	"net/http"
	"time"
)

// handshakeTimeout bounds a handshake and a request's header. Two cores complete
// about 900 handshakes a second (docs/benchmarks.md), and an aborted handshake is
// retried at full cost, so the timeout covers 10,000 nodes that reconnect at once.
const handshakeTimeout = 30 * time.Second

// Server returns an HTTP server for h with the limits on connections, headers and
// idle time that every listener has. Routes limit bodies and responses.
func Server(log *slog.Logger, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: handshakeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Failed handshakes and disconnected clients.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
