package edge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/gpuaas/gpuaas/schema"
)

// answer notes the status of what is written.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter. A second status is dropped.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// JSON answers with v. A client that is gone is not an error of ours.
func JSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the answer")
	}
	body = append(body, '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // nobody is left to tell
	return nil
}

// NoContent answers 204.
func NoContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refuse answers with err's envelope and notes err for the log line. When the
// caller is gone, what failed is most likely only that, so nothing is sent.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	e := asError(err)
	status := e.Kind.Info().HTTP
	if status >= http.StatusInternalServerError && errors.Is(r.Context().Err(), context.Canceled) {
		gone(w, r, e)
		return
	}
	refuseWith(w, r, status, e)
}

func refuseWith(w http.ResponseWriter, r *http.Request, status int, e *schema.Error) {
	rec := recordOf(r.Context())
	rec.refusal = e
	if e.Kind == schema.KindUnauthenticated && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="gpuaas"`)
	}
	// An envelope of strings always encodes.
	_ = JSON(w, status, e.Body(rec.correlationID))
}

// gone ends a request that nobody waits for. The connection is cut: without an
// answer net/http would send a 200.
func gone(w http.ResponseWriter, r *http.Request, e *schema.Error) {
	recordOf(r.Context()).refusal = e
	if a, ok := w.(*answer); ok && a.status == 0 {
		a.status = statusClientGone
	}
	panic(http.ErrAbortHandler)
}

// asError gives every error a kind. The text of one without a kind is for the
// log only; one that is our own deadline is an outage, not a bug.
func asError(err error) *schema.Error {
	e := schema.AsError(err)
	if e.Kind == schema.KindInternal && errors.Is(err, context.DeadlineExceeded) {
		return &schema.Error{Kind: schema.KindServiceUnavailable, Message: "the request took too long", Reason: "timeout", Err: err}
	}
	return e
}
