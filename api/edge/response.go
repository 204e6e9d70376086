package edge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/gpuaas/gpuaas/schema"
)

// response records the status that is written.
type response struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter. A second status is dropped.
func (a *response) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *response) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *response) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// JSON responds with v. It ignores a disconnected client.
func JSON(w http.ResponseWriter, status int, v any) error {
	return send(w, status, "application/json", v)
}

func send(w http.ResponseWriter, status int, contentType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the response")
	}
	body = append(body, '\n')
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone
	return nil
}

// NoContent responds with 204.
func NoContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refuse responds with err's envelope, or with problem details if the client asks for
// them, and records err for the log line. If the
// client has disconnected, a server error is most likely a consequence of that,
// and nothing is sent.
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
	if e.Next == "" && rec.next != nil {
		e = new(*e)
		e.Next = rec.next(e.Kind)
	}
	rec.refusal = e
	if e.Kind == schema.KindUnauthenticated && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="gpuaas"`)
	}
	body := e.Body(rec.correlationID)
	// Strings and a number always encode.
	if wantsProblem(r.Header) {
		_ = send(w, status, problemType, problemOf(status, body.Error))
		return
	}
	_ = JSON(w, status, body)
}

// gone ends the request of a disconnected client. It aborts the connection, because
// net/http would send a 200 otherwise.
func gone(w http.ResponseWriter, r *http.Request, e *schema.Error) {
	recordOf(r.Context()).refusal = e
	if a, ok := w.(*response); ok && a.status == 0 {
		a.status = statusClientGone
	}
	panic(http.ErrAbortHandler)
}

// asError gives every error a kind. The text of an error without one is only
// logged. The server's own deadline is reported as unavailable, not as internal.
func asError(err error) *schema.Error {
	e := schema.AsError(err)
	if e.Kind == schema.KindInternal && errors.Is(err, context.DeadlineExceeded) {
		return &schema.Error{Kind: schema.KindServiceUnavailable, Message: "the request took too long", Reason: "timeout", Err: err}
	}
	return e
}
