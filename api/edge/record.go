package edge

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// statusClientGone is logged for a request whose client went away before the
// answer. It is never sent.
const statusClientGone = 499

// record is what a request gathers for its log line. A request is served by one
// goroutine, so it needs no lock.
type record struct {
	correlationID string
	path          string
	quiet         bool
	maxBody       int
	attrs         []slog.Attr
	refusal       *schema.Error
}

type recordKey struct{}

func recordOf(ctx context.Context) *record {
	if rec, ok := ctx.Value(recordKey{}).(*record); ok {
		return rec
	}
	return &record{}
}

// CorrelationID returns the request's correlation id, "" outside a request.
func CorrelationID(ctx context.Context) string { return recordOf(ctx).correlationID }

// Annotate adds attributes to the request's log line, in place of those of the
// same key. They must hold no secret.
func Annotate(ctx context.Context, attrs ...slog.Attr) {
	rec := recordOf(ctx)
	for _, a := range attrs {
		same := func(b slog.Attr) bool { return a.Key == b.Key }
		if i := slices.IndexFunc(rec.attrs, same); i >= 0 {
			rec.attrs[i] = a
		} else {
			rec.attrs = append(rec.attrs, a)
		}
	}
}

// correlationID takes the caller's id when it is 1 to 128 of A-Za-z0-9._:- and
// makes one otherwise, so that it may go into a log and a header as it is.
func correlationID(h http.Header) string {
	values := h.Values(wire.HeaderCorrelationID)
	if len(values) == 1 && validCorrelationID(values[0]) {
		return values[0]
	}
	return schema.NewID()
}

func validCorrelationID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}

// log writes the request's line: names and numbers, never a header, a body or
// the path as it came.
func (s *server) log(r *http.Request, rec *record, status int, took time.Duration) {
	level := levelOf(status, rec.quiet)
	if !s.cfg.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := append([]slog.Attr{
		slog.String("listener", s.cfg.Listener),
		slog.String("correlation_id", rec.correlationID),
		slog.String("method", method(r)),
		slog.String("path", rec.path),
		slog.Int("status", status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000),
		slog.String("remote", r.RemoteAddr),
	}, rec.attrs...)
	if e := rec.refusal; e != nil {
		attrs = append(attrs, slog.String("code", string(e.Kind)), slog.String("reason", e.Reason), slog.String("err", e.Error()))
	}
	s.cfg.Log.LogAttrs(r.Context(), level, "request", attrs...)
}

func levelOf(status int, quiet bool) slog.Level {
	switch {
	case status == http.StatusServiceUnavailable:
		return slog.LevelWarn
	case status >= http.StatusInternalServerError:
		return slog.LevelError
	case quiet && (status < http.StatusBadRequest || status == statusClientGone):
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// method bounds what an unknown method can put into the log.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodHead, http.MethodOptions:
		return r.Method
	}
	return "other"
}
