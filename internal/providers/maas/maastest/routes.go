package maastest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxBody bounds requests. It is Django's limit of forms.
const maxBody = 2_621_440

// reply is a response.
type reply struct {
	code int
	kind string
	body []byte
}

// plain is the response of a MAASAPIException (exceptions.py).
func plain(code int, format string, args ...any) reply {
	return reply{code, "text/plain; charset=utf-8", fmt.Appendf(nil, format, args...)}
}

// object is the response of a handler: piston indents by four.
func object(v any) reply {
	text, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return plain(http.StatusInternalServerError, "%v", err)
	}
	return reply{http.StatusOK, "application/json; charset=utf-8", text}
}

// invalid is the response of a MAASAPIValidationError with one field (exceptions.py).
func invalid(field, message string) reply {
	text, err := json.Marshal(map[string][]string{field: {message}})
	if err != nil {
		return plain(http.StatusInternalServerError, "%v", err)
	}
	return reply{http.StatusBadRequest, "application/json; charset=utf-8", text}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "Request body exceeded settings.DATA_UPLOAD_MAX_MEMORY_SIZE.", http.StatusBadRequest)
		return
	}
	// A request that arrives late is handled after this function, so it needs its own copy.
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err := r.ParseForm(); err != nil {
		http.Error(w, "Bad Request", http.StatusBadRequest)
		return
	}
	op := operation(r)
	switch f := s.fault(op); f {
	case "":
		write(w, s.handle(op, r))
	default:
		s.misbehave(w, r, op, f)
	}
}

func write(w http.ResponseWriter, a reply) {
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("X-Maas-Api-Hash", "9e51f33ce")
	switch a.code {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `OAuth realm="OAuth"`)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "10") // RETRY_AFTER_SERVICE_UNAVAILABLE of middleware.py
	}
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body) // the client may have left
}

// operation names a request for faults and the log: its op, or read or list.
func operation(r *http.Request) string {
	if op := r.FormValue("op"); op != "" {
		return op
	}
	if strings.HasSuffix(r.URL.Path, "/devices/") {
		return "devices"
	}
	if strings.HasSuffix(r.URL.Path, "/machines/") {
		return "list"
	}
	return "read"
}

// handle dispatches by path, method and op (OperationsHandlerMixin.dispatch of api/support.py).
func (s *Server) handle(op string, r *http.Request) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick()
	s.requests = append(s.requests, op)
	path, ok := strings.CutPrefix(r.URL.Path, "/MAAS/api/2.0/")
	if !ok || !strings.HasSuffix(path, "/") {
		return reply{http.StatusNotFound, "text/html; charset=utf-8", []byte("<!DOCTYPE html><title>Not found</title>")}
	}
	if problem := s.authorized(r); problem != "" {
		return plain(http.StatusUnauthorized, "%s", problem)
	}
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	switch route := r.Method + " " + parts[0]; {
	case len(parts) == 1 && route == "GET users" && op == "whoami":
		return object(map[string]any{"username": user, "email": "gpuaas@example.com", "is_superuser": true, "is_local": true})
	case len(parts) == 1 && route == "GET machines" && op == "list":
		return s.list(r)
	case len(parts) == 1 && route == "GET machines" && op == "list_allocated":
		r.Form = map[string][]string{"owner": {user}, "status": {"allocated"}}
		return s.list(r)
	case len(parts) == 1 && route == "POST machines" && op == "allocate":
		return s.allocate(r)
	case len(parts) == 1 && route == "GET events" && op == "query":
		return s.query(r)
	case len(parts) == 3 && route == "GET nodes" && parts[2] == "devices":
		return s.devices(parts[1], r)
	case len(parts) == 2 && parts[0] == "machines":
		return s.one(parts[1], op, r)
	}
	return unrecognized(op, r)
}

func unrecognized(op string, r *http.Request) reply {
	return plain(http.StatusBadRequest, "Unrecognised signature: method=%s op=%s", r.Method, op)
}

// one handles a request about one machine.
func (s *Server) one(id, op string, r *http.Request) reply {
	m := s.machine(id)
	if m == nil {
		return plain(http.StatusNotFound, "No Machine matches the given query.")
	}
	switch r.Method + " " + op {
	case "GET read":
		return object(s.describe(m))
	case "GET query_power_state":
		return object(map[string]string{"state": m.power})
	case "POST set_workload_annotations":
		return s.annotate(m, r)
	case "POST deploy":
		return s.deploy(m, r)
	case "POST release":
		return s.release(m, r)
	case "POST power_on":
		return s.powerOn(m, r)
	case "POST power_off":
		return s.powerOff(m, r)
	}
	return unrecognized(op, r)
}
