package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// meteredConn forwards one agent's requests to the node API, counts their outcomes and
// applies the misbehavior of the node's connection.
type meteredConn struct {
	m    *member
	real http.RoundTripper
}

// newWire returns an agent's transport. Its buffers are small, because there are
// thousands of them and the messages are short.
func (m *member) newWire(c *tls.Config) http.RoundTripper {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // as the agent's own
	return &meteredConn{m: m, real: &http.Transport{
		TLSClientConfig: c, Protocols: &protocols, MaxIdleConns: 2, IdleConnTimeout: 25 * time.Second,
		TLSHandshakeTimeout: 30 * time.Second, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, DialContext: m.connections.dial,
	}}
}

// CloseIdleConnections is called by http.Client.
func (w *meteredConn) CloseIdleConnections() {
	if t, ok := w.real.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (w *meteredConn) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.m.muted.Load() {
		return refuseAfter(r, r.Context().Done())
	}
	switch kind := path.Base(r.URL.Path); {
	case kind == "wait":
		return w.poll(r)
	case kind == "progress":
		return w.progress(r)
	case kind == "result":
		return w.result(r)
	}
	return w.real.RoundTrip(r)
}

// with returns the request with another body.
func with(r *http.Request, body []byte) *http.Request {
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r
}

// refuseAfter fails a request that is never sent.
func refuseAfter(r *http.Request, done <-chan struct{}) (*http.Response, error) {
	<-done
	if r.Body != nil {
		r.Body.Close()
	}
	return nil, context.Cause(r.Context())
}

// acceptedAfter is how long a poll must be open to count as accepted: the server
// refuses a poll at once, and answers an accepted one after up to a minute.
const acceptedAfter = time.Second

// poll forwards a long poll and records the lease of the task in its response.
func (w *meteredConn) poll(r *http.Request) (*http.Response, error) {
	t := w.m.tally
	t.polling.Add(1)
	defer t.polling.Add(-1)
	defer time.AfterFunc(acceptedAfter, w.m.admitted).Stop()
	res, err := w.real.RoundTrip(r)
	if err != nil || res.StatusCode/100 != 2 {
		return res, err
	}
	w.m.admitted()
	if res.StatusCode != http.StatusOK {
		return res, nil
	}
	var o wire.TaskOffer
	if err := peek(res, &o); err != nil {
		return nil, err
	}
	t.offers.Add(1)
	if w.m.misbehavior == Late {
		w.m.leased(o.TaskID, o.Lease)
	}
	return res, nil
}

// peek parses a response's JSON, and leaves the body for the agent.
func peek(res *http.Response, v any) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, wire.MaxResultBytes))
	res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return err
	}
	_ = json.Unmarshal(body, v) // the agent reports a malformed body
	return nil
}

// progress forwards a progress report, whose response extends the lease.
func (w *meteredConn) progress(r *http.Request) (*http.Response, error) {
	res, err := w.real.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusOK || w.m.misbehavior != Late {
		return res, err
	}
	var a wire.ProgressResponse
	if err := peek(res, &a); err != nil {
		return nil, err
	}
	w.m.leased(taskOf(r), a.Lease)
	return res, nil
}

// taskOf returns the task of …/tasks/{id}/….
func taskOf(r *http.Request) string { return path.Base(path.Dir(r.URL.Path)) }

// result forwards a result, late or twice if the node misbehaves so.
func (w *meteredConn) result(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 2*wire.MaxResultBytes))
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	send := func() (*http.Response, error) {
		begun := time.Now()
		res, err := w.real.RoundTrip(with(r, body))
		if err == nil {
			w.m.tally.results.add(time.Since(begun))
		}
		return res, err
	}
	var res *http.Response
	switch w.m.misbehavior {
	case Late:
		if err := w.m.hold(r.Context(), taskOf(r)); err != nil {
			return nil, err
		}
		res, err = send()
	case Duplicate:
		res, err = w.twice(send)
	default:
		res, err = send()
	}
	if err == nil {
		w.m.tally.countResult(res.StatusCode, body)
	}
	return res, err
}

// countResult counts the response to a result.
func (t *tally) countResult(status int, body []byte) {
	var r task.Result
	switch {
	case status == http.StatusConflict:
		t.late.Add(1)
	case status/100 != 2 || json.Unmarshal(body, &r) != nil:
	case r.Status == task.Succeeded:
		t.done.Add(1)
	default:
		t.failed.Add(1)
	}
}

// twice sends a request twice in parallel and returns one of the responses.
func (w *meteredConn) twice(send func() (*http.Response, error)) (*http.Response, error) {
	other := make(chan int, 1)
	go func() {
		res, err := send()
		if err != nil {
			other <- 0
			return
		}
		_, _ = io.Copy(io.Discard, res.Body) // only its status counts
		res.Body.Close()
		other <- res.StatusCode
	}()
	res, err := send()
	status := <-other
	w.m.tally.twice.Add(1)
	if err == nil && status != 0 && status != res.StatusCode {
		w.m.tally.split.Add(1)
	}
	return res, err
}
