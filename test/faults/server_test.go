package faults_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
)

const testEnv = "test"

// site is the server side of a run: one API process at a time.
type site struct {
	store  nodeStore
	issuer nodeapi.Issuer
	clock  *clock
	wire   *faultyWire
	cert   *tls.Certificate
	points *points
	gate   *gate
	log    *slog.Logger

	mu      sync.Mutex
	process *http.Server
	done    chan struct{}
}

// nodeStore is the database as the node API uses it.
type nodeStore interface {
	nodeapi.Identities
	nodeapi.Tasks
	nodeapi.Heartbeats
}

// nodeStore returns the parts of the store that the node API uses.
func (w *world) nodeStore() nodeStore {
	return struct {
		*store.Identities
		*store.Tasks
		*store.Inventory
	}{w.store.Identities, w.store.Tasks, w.store.Inventory}
}

// silent never sends a notification.
type silent struct{}

func (silent) Subscribe(string, int64) (<-chan struct{}, func()) { return nil, func() {} }

func newSite(s nodeStore, i nodeapi.Issuer, c *clock, cert *tls.Certificate, log io.Writer) *site {
	out := &site{clock: c, wire: &faultyWire{}, cert: cert, gate: newGate(c),
		log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: withoutTime}))}
	out.points = newPoints(out.die)
	out.store, out.issuer = pointStore{s, out.points}, pointIssuer{i, out.points}
	return out
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// unlimited is a rate that is never reached.
const unlimited = 1e6

// start starts an API process on the network.
func (s *site) start() {
	api := nodeapi.New(nodeapi.Config{Env: testEnv, Identities: s.store, Tasks: s.store, Heartbeats: s.store, Notifier: silent{}, Issuer: s.issuer, Grants: noWork{}, VerifierSets: noWork{}, Now: s.clock.Now,
		// Rate limits use real time, which does not apply here.
		IssueRate: unlimited, NodeRate: unlimited, RenewalRate: unlimited, RemoteRate: unlimited,
		Metrics: metrics.New(prometheus.NewRegistry()), Log: s.log, Ready: func() error { return nil }})
	server := api.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert, nil })
	server.Handler = s.gate.wrap(server.Handler)
	server.TLSConfig = oneProtocol(server.TLSConfig)
	on, done := s.wire.listen(), make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(on, "", "")
	}()
	s.gate.setDead(false)
	s.mu.Lock()
	s.process, s.done = server, done
	s.mu.Unlock()
}

// oneProtocol offers HTTP/1.1 only. Whether the client repeats a request on a dying
// connection then follows a rule instead of a race.
func oneProtocol(c *tls.Config) *tls.Config {
	inner := c.GetConfigForClient
	c.NextProtos = []string{"http/1.1"}
	c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		got, err := inner(h)
		if got != nil {
			got.NextProtos = []string{"http/1.1"}
		}
		return got, err
	}
	return c
}

// die stops all responses of the process.
func (s *site) die() { s.gate.setDead(true) }

// stop ends the process, if there is one.
func (s *site) stop() {
	s.mu.Lock()
	server, done := s.process, s.done
	s.process = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	s.gate.setDead(true)
	_ = server.Close()
	<-done
}

func (s *site) restart() {
	s.stop()
	s.start()
}
