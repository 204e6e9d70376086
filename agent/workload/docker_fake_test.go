package workload

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeContainer is a container of fakeDocker.
type fakeContainer struct {
	id, name   string
	label      string
	policy     restartPolicy
	stopSignal string
	running    bool
	starts     int
	ignores    bool // the stop signal
	autoRemove bool // is removed when it ends
}

// fakeDocker serves the part of the Docker Engine API that the driver uses on a unix socket,
// and behaves as dockerd does: it starts a container with a restart policy again when the
// container ends after a signal that is not its stop signal.
type fakeDocker struct {
	socket string

	mu         sync.Mutex
	containers []*fakeContainer
	calls      []string // method and path of each request that changes something
	version    string   // of the API; requests in a later one are refused
	// before is called before each request is answered, without the lock. It returns a status
	// to answer with instead, or 0.
	before func(method, path string) int
}

// newFakeDocker starts a daemon with containers.
func newFakeDocker(t *testing.T, containers ...*fakeContainer) *fakeDocker {
	t.Helper()
	f := &fakeDocker{socket: filepath.Join(t.TempDir(), "docker.sock"), version: "1.41"}
	for _, c := range containers {
		c.label, c.running, c.starts = DefaultLabel, true, 1
		f.containers = append(f.containers, c)
	}
	l, err := net.Listen("unix", f.socket)
	require.NoError(t, err)
	s := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return f
}

// seen returns the requests that changed something.
func (f *fakeDocker) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// change changes a container under the lock.
func (f *fakeDocker) change(name string, change func(*fakeContainer)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.name == name {
			change(c)
		}
	}
}

// get returns a copy of a container.
func (f *fakeDocker) get(name string) (found fakeContainer) {
	f.change(name, func(c *fakeContainer) { found = *c })
	return found
}

// set changes the fake under the lock.
func (f *fakeDocker) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// intercept sets before.
func (f *fakeDocker) intercept(before func(method, path string) int) {
	f.set(func() { f.before = before })
}

// ServeHTTP implements http.Handler.
func (f *fakeDocker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if status := before(r.Method, r.URL.Path); status != 0 {
			refuse(w, status, "intercepted")
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.URL.Path == "/_ping" {
		w.Header().Set("Api-Version", f.version)
		return
	}
	version, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v"), "/")
	if version != f.version {
		refuse(w, http.StatusBadRequest, "client version "+version+" is too new. Maximum supported API version is "+f.version)
		return
	}
	if r.Method == http.MethodPost {
		f.calls = append(f.calls, path+" "+r.URL.RawQuery)
	}
	f.route(w, r, path)
}

// route answers a request in the right version. The caller holds the lock.
func (f *fakeDocker) route(w http.ResponseWriter, r *http.Request, path string) {
	if path == "containers/json" {
		f.list(w, r)
		return
	}
	parts := strings.Split(path, "/") // containers/ID/VERB
	i := slices.IndexFunc(f.containers, func(c *fakeContainer) bool { return len(parts) == 3 && c.id == parts[1] })
	if i < 0 {
		refuse(w, http.StatusNotFound, "No such container: "+path)
		return
	}
	switch c := f.containers[i]; parts[2] {
	case "json":
		reply(w, c.describe())
	case "update":
		var q struct{ RestartPolicy restartPolicy }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || c.autoRemove {
			refuse(w, http.StatusBadRequest, "Restart policy cannot be updated because AutoRemove is enabled for the container")
			return
		}
		c.policy = q.RestartPolicy
		reply(w, map[string]any{"Warnings": nil})
	case "kill":
		f.kill(w, c, r.URL.Query().Get("signal"))
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

// list answers with the running containers that have the label of the filter.
func (f *fakeDocker) list(w http.ResponseWriter, r *http.Request) {
	var filters map[string][]string
	if err := json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filters); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	list := []map[string]any{}
	for _, c := range f.containers {
		if c.running && slices.Contains(filters["label"], c.label) {
			list = append(list, map[string]any{"Id": c.id, "Names": []string{"/" + c.name}, "State": "running"})
		}
	}
	reply(w, list)
}

// kill sends a signal to a container.
func (f *fakeDocker) kill(w http.ResponseWriter, c *fakeContainer, signal string) {
	stop := c.stopSignal
	if stop == "" {
		stop = "SIGTERM"
	}
	switch {
	case !c.running:
		refuse(w, http.StatusConflict, "Container "+c.id+" is not running")
		return
	case signal == "SIGKILL", signal == stop && !c.ignores:
		c.running = c.policy.restarts()
		if c.running {
			c.starts++
		}
	}
	if c.autoRemove && !c.running {
		f.containers = slices.DeleteFunc(f.containers, func(x *fakeContainer) bool { return x == c })
	}
	w.WriteHeader(http.StatusNoContent)
}

// describe is the container as GET /containers/ID/json returns it.
func (c *fakeContainer) describe() map[string]any {
	return map[string]any{
		"Id": c.id, "Name": "/" + c.name, "Created": "2024-05-03T10:00:00.5Z",
		"Config":     map[string]any{"StopSignal": c.stopSignal, "Labels": map[string]string{c.label: ""}},
		"HostConfig": map[string]any{"RestartPolicy": c.policy, "AutoRemove": c.autoRemove},
		"State":      map[string]any{"Running": c.running, "StartedAt": "2024-05-03T10:00:01.5Z"},
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	if _, err := fmt.Fprintf(w, `{"message":%q}`, message); err != nil {
		panic(err)
	}
}
