package faults_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
)

// gate wraps the API's handler and loses, repeats and truncates requests.
type gate struct {
	mu    sync.Mutex
	armed map[string]kind // by the last path element
	hit   []kind
	late  []func() // copies that arrive after the step
	dead  bool
	clock *clock
}

func newGate(c *clock) *gate { return &gate{armed: map[string]kind{}, clock: c} }

func (g *gate) arm(call string, t kind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed[call] = t
}

func (g *gate) disarm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.armed)
}

func (g *gate) happened() []kind {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.hit
	g.hit = nil
	return out
}

// deliverLate delivers the late copies.
func (g *gate) deliverLate() int {
	g.mu.Lock()
	late := g.late
	g.late = nil
	g.mu.Unlock()
	for _, f := range late {
		func() {
			defer func() { _ = recover() }() // a crash of the API ends the call, not the run
			f()
		}()
	}
	return len(late)
}

func (g *gate) setDead(dead bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = dead
}

// take returns the fault of a call, which happens once.
func (g *gate) take(call string) (kind, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.armed[call]
	delete(g.armed, call)
	if t != "" && !g.dead {
		g.hit = append(g.hit, t)
	}
	return t, g.dead
}

// wrap puts the gate in front of h. Long polls return immediately, because nothing
// in these tests would end them.
func (g *gate) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := path.Base(r.URL.Path)
		if call == "wait" {
			q := r.URL.Query()
			q.Set("timeout", "0s")
			r.URL.RawQuery = q.Encode()
		}
		w.Header().Set("Date", g.clock.Now().UTC().Format(http.TimeFormat))
		t, dead := g.take(call)
		if dead || t == kindLostRequest {
			panic(http.ErrAbortHandler)
		}
		if t == "" {
			h.ServeHTTP(w, r)
			g.cutIfDead()
			return
		}
		g.trouble(t, h, w, r)
	})
}

// cutIfDead drops the response of a process that died while it handled the request.
func (g *gate) cutIfDead() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		panic(http.ErrAbortHandler)
	}
}

func (g *gate) trouble(t kind, h http.Handler, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	copyOf := func() *http.Request {
		c := r.Clone(r.Context())
		c.Body = io.NopCloser(bytes.NewReader(body))
		return c
	}
	answer := &kept{header: http.Header{}}
	h.ServeHTTP(answer, copyOf())
	g.cutIfDead()
	switch t {
	case kindLostAnswer:
		panic(http.ErrAbortHandler)
	case kindDuplicate:
		answer = &kept{header: http.Header{}}
		h.ServeHTTP(answer, copyOf())
		g.cutIfDead()
	case kindLateCopy:
		c := copyOf()
		c = c.WithContext(context.WithoutCancel(r.Context()))
		g.mu.Lock()
		g.late = append(g.late, func() { h.ServeHTTP(&kept{header: http.Header{}}, c) })
		g.mu.Unlock()
	}
	answer.to(w, t == kindTornAnswer)
}

// kept is a buffered response.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header { return k.header }

func (k *kept) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
}

func (k *kept) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}

// to sends the response, or its first half before the connection breaks.
func (k *kept) to(w http.ResponseWriter, torn bool) {
	for name, values := range k.header {
		if !strings.EqualFold(name, "Content-Length") {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(max(k.status, http.StatusOK))
	if !torn {
		_, _ = w.Write(k.body.Bytes())
		return
	}
	_, _ = w.Write(k.body.Bytes()[:k.body.Len()/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func (g *gate) isDead() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dead
}
