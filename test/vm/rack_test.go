package vm

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// rack is a double of MAAS whose machines are QEMU processes.
type rack struct {
	*maastest.Server
	guests *maastest.Guests
	// front is the server that workers use.
	front *httptest.Server
}

// openRack starts the double with two machines. kill is called before and after each request with
// its operation: if it returns true, the client gets no response.
func openRack(t *testing.T, kill func(when, operation string) bool) *rack {
	t.Helper()
	r := &rack{guests: &maastest.Guests{Kernel: filepath.Join(imageDir, libvirt.KernelFile), Initramfs: filepath.Join(imageDir, libvirt.InitramfsFile),
		Dir: t.TempDir(), Hosts: map[string]string{"localhost": "10.0.2.2"}}}
	size := maastest.Machine{CPUs: 1, MemoryMiB: 512}
	r.Server = maastest.New(maastest.Options{Guests: r.guests, Delays: maastest.Delays{Power: 100 * time.Millisecond, Deploy: time.Second,
		Erase: 100 * time.Millisecond}}, size, size)
	t.Cleanup(r.Close)
	r.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		operation := req.URL.Query().Get("op")
		if kill("before", operation) {
			panic(http.ErrAbortHandler)
		}
		reply := httptest.NewRecorder()
		r.ServeHTTP(reply, req)
		if kill("after", operation) {
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), reply.Header())
		w.WriteHeader(reply.Code)
		_, _ = io.Copy(w, reply.Body) // the client may have left
	}))
	r.front.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(r.front.Close)
	return r
}

// left returns what is left of the machines: those that MAAS does not offer, those that have a
// process, and those that still have something of their instance.
func (r *rack) left() (found []string) {
	for _, id := range r.Used() {
		found = append(found, "in use: "+id)
	}
	for _, id := range r.guests.Running() {
		found = append(found, "running: "+id)
	}
	for _, id := range r.Leftovers() {
		found = append(found, "not released completely: "+id)
	}
	return found
}

// configure makes the stack's worker use the rack.
func (s *site) configure() {
	s.t.Helper()
	key := filepath.Join(s.dir, "maas-key")
	require.NoError(s.t, os.WriteFile(key, []byte(s.rack.Key), 0o600))
	s.env = append(s.env, "MAAS_API_BASE_URL="+s.rack.front.URL+"/MAAS", "MAAS_API_TOKEN_FILE="+key)
}

// killAt kills the worker if it is armed for the operation of MAAS: see killWorker.
func (s *site) killAt(when, operation string) bool {
	armed, err := os.ReadFile(s.armed())
	if operation == "" || err != nil || strings.TrimSpace(string(armed)) != when+" "+operation {
		return false
	}
	if err := errors.Join(s.stopWorker(), os.Remove(s.armed())); err != nil {
		s.t.Error(err)
	}
	return true
}

// killedAtMAAS kills the worker after each call that changes a machine of MAAS, before it gets the
// response. There is one machine or none, and the operation completes with the next worker.
func killedAtMAAS(s *site) {
	const name = "bare-killed"
	s.register(name, maas.Name)
	s.killWorker("after", "allocate")
	s.run("node", "provision", name, "--no-wait")
	s.awaitKill()
	require.Len(s.t, s.rack.Used(), 1)
	s.killWorker("after", "deploy")
	s.startWorker()
	s.awaitKill()
	s.startWorker()
	s.run("op", "watch", name)
	s.logPhases(name)
	n := s.node(name)
	require.Equal(s.t, lifecycle.InstanceRunning, n.Instance.State)
	require.Equal(s.t, []string{n.Instance.ExternalID}, s.rack.Used())
	require.Equal(s.t, []string{n.Instance.ExternalID}, s.rack.guests.Running())
	s.run("node", "retire", name, "--drain", "--yes", "--reason", "test", "--wait")
	s.killWorker("after", "release")
	s.run("node", "remove", name, "--yes", "--reason", "test", "--no-wait")
	s.awaitKill()
	s.startWorker()
	s.run("op", "watch", n.ID)
	s.logPhases(n.ID)
	require.Empty(s.t, s.rack.left())
}
