package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/console"
)

// subjects authenticates a request of the console by the subject of its session, and each other
// one by its bearer token. It implements adminapi.Authenticator.
type subjects struct{ tokens *adminapi.Tokens }

// Authenticate implements adminapi.Authenticator.
func (s subjects) Authenticate(r *http.Request) (adminapi.Subject, error) {
	if by, ok := console.SubjectOf(r.Context()); ok {
		return adminapi.Subject{Name: by.Name, Role: by.Role, Via: console.Via}, nil
	}
	return s.tokens.Authenticate(r)
}

// consoleTokens returns the subject of a token for the console.
func consoleTokens(tokens *adminapi.Tokens) func([32]byte) (console.Subject, bool) {
	return func(sum [32]byte) (console.Subject, bool) {
		by, ok := tokens.Subject(sum)
		return console.Subject{Name: by.Name, Role: by.Role}, ok
	}
}

// newConsole makes the console over the admin API's handler.
func (a *app) newConsole(api http.Handler) (*console.Console, error) {
	public, hosts, err := a.cfg.consoleAddress(a.adminAddress)
	if err != nil {
		return nil, err
	}
	a.Log.Info("serving the console", slog.String("url", public.String()+console.Prefix+"/"))
	return console.New(console.Config{API: inProcess{api}, Tokens: consoleTokens(a.cfg.tokens), Sessions: a.store.Console, Trail: a.store.Console,
		URL: public, Hosts: hosts, Env: a.cfg.Env, Log: a.Log, Observe: a.Metrics.HTTPRequests(listenerConsole)})
}

// consoleAddress returns the console's public URL, and without a configured one the loopback
// addresses of the admin API's port.
func (c *config) consoleAddress(admin string) (public *url.URL, hosts []string, err error) {
	if c.ConsoleURL != "" {
		public, err = url.Parse(c.ConsoleURL)
		return public, nil, err
	}
	_, port, err := net.SplitHostPort(admin)
	if err != nil {
		return nil, nil, err
	}
	hosts = []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
	return &url.URL{Scheme: "http", Host: net.JoinHostPort("localhost", port)}, hosts, nil
}

// checkConsole checks the settings of the console.
func (c *config) checkConsole(invalid func(wrong bool, format string, args ...any)) {
	invalid(c.serve.has(listenerConsole) && !c.serve.has(listenerAdmin), "--serve: the console is served with the admin API: --serve=admin,console")
	if c.ConsoleURL = strings.TrimRight(c.ConsoleURL, "/"); c.ConsoleURL == "" {
		return
	}
	u, err := url.Parse(c.ConsoleURL)
	invalid(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "",
		"GPUAAS_CONSOLE_URL must be an http or https URL without a path and without credentials")
	invalid(err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()),
		"GPUAAS_CONSOLE_URL: %s would send the session unencrypted; use https", c.ConsoleURL)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// isConsole reports whether a request is for the console, and not for the admin API.
func isConsole(r *http.Request) bool {
	return r.URL.Path == "/" || r.URL.Path == console.Prefix || strings.HasPrefix(r.URL.Path, console.Prefix+"/")
}

// inProcess sends requests to a handler of this process. A response arrives as it is written. It
// implements http.RoundTripper.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	body, writer := io.Pipe()
	w := &pipedResponse{header: http.Header{}, body: writer, started: make(chan struct{})}
	go t.serve(w, r)
	select {
	case <-w.started:
	case <-r.Context().Done():
		_ = body.Close() // always nil
		return nil, r.Context().Err()
	}
	if w.status == 0 {
		return nil, errors.New("the handler ended without a response")
	}
	return &http.Response{StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: body, ContentLength: -1, Request: r}, nil
}

// serve calls the handler. A handler that aborts its response ends the body with an error.
func (t inProcess) serve(w *pipedResponse, r *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			w.once.Do(func() { close(w.started) })
			_ = w.body.CloseWithError(io.ErrUnexpectedEOF) // always nil
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = w.body.Close() // always nil
	}()
	t.handler.ServeHTTP(w, r)
}

// pipedResponse is the response of a handler as it is read. It implements http.ResponseWriter and
// http.Flusher.
type pipedResponse struct {
	header, sent http.Header
	status       int
	once         sync.Once
	// started is closed when the status is known, or the handler aborted.
	started chan struct{}
	body    *io.PipeWriter
}

// Header implements http.ResponseWriter.
func (w *pipedResponse) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *pipedResponse) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

// Write implements http.ResponseWriter.
func (w *pipedResponse) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush implements http.Flusher: nothing is buffered.
func (w *pipedResponse) Flush() { w.WriteHeader(http.StatusOK) }
