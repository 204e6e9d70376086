package edge

import (
	"log/slog"
	"net/http"
	"time"
)

// Server returns an HTTP server over h with the limits that every listener has
// on connections, headers and idle time. Bodies and answers have theirs per
// route.
func Server(log *slog.Logger, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Handshakes that fail and clients that go away: noise unless asked for.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
