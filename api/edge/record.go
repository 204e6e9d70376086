package edge

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// statusClientGone is logged for a request whose client disconnected before the
// response. It is never sent.
const statusClientGone = 499

const maxCorrelationID = 128

// record collects the content of a request's log line. One goroutine serves a
// request, so it needs no lock.
type record struct {
	correlationID string
	path          string
	quiet         bool
	maxBody       int
	sampled       bool
	attrs         []slog.Attr
	refusal       *schema.Error
	next          func(schema.Kind) string
}

type recordKey struct{}

func recordOf(ctx context.Context) *record {
	if rec, ok := ctx.Value(recordKey{}).(*record); ok {
		return rec
	}
	return &record{}
}

// CorrelationID returns the request's correlation id, or "" outside a request.
func CorrelationID(ctx context.Context) string { return recordOf(ctx).correlationID }

// Annotate sets attributes of the request's log line by key. They must not contain
// a secret.
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

// SampleRefusal marks a request that any client can send. If it is refused, its log line
// is at level debug once such lines exceed a rate: a client must not be able to fill the
// log.
func SampleRefusal(ctx context.Context) { recordOf(ctx).sampled = true }

// correlationID returns the caller's id if it is 1 to 128 of A-Za-z0-9._:- and is not
// a secret, so that it is safe in a log and a header, and a new one otherwise.
func (s *server) correlationID(h http.Header) string {
	values := h.Values(wire.HeaderCorrelationID)
	if len(values) == 1 && text.IsToken(values[0], maxCorrelationID, "._:-") && s.cfg.Secrets.Find([]byte(values[0])) == "" {
		return values[0]
	}
	return schema.NewID()
}

// log writes the request's line. It contains names and numbers, never a header, a
// body or the raw path.
func (s *server) log(r *http.Request, rec *record, status int, took time.Duration) {
	level := levelOf(status, rec.quiet)
	if rec.sampled && status >= http.StatusBadRequest && status < http.StatusInternalServerError && !s.samples.Allow() {
		level = slog.LevelDebug
	}
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

// method returns the request's method for the log, or other for an unknown one.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodHead, http.MethodOptions:
		return r.Method
	}
	return "other"
}
