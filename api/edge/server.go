package edge

import (
	"log/slog"
	"net/http"
	"time"
)

// handshakeBudget bounds a handshake and a request's header. When a fleet comes
// back all at once, two cores shake hands with about 900 nodes a second
// (docs/benchmarks.md), and a handshake that is given up is begun anew and costs
// as much again: so it is that of 10,000 nodes with room to spare.
const handshakeBudget = 30 * time.Second

// Server returns an HTTP server over h with the limits that every listener has
// on connections, headers and idle time. Bodies and answers have theirs per
// route.
func Server(log *slog.Logger, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: handshakeBudget,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Handshakes that fail and clients that go away: noise unless asked for.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
