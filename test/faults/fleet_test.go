package faults_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// fleetTimeout bounds the return of one agent beyond the time that the budget needs for all.
const fleetTimeout = 2 * time.Minute

// budget is the issuance budget under test in certificates per second. It is small
// enough to detect a fleet that exceeds it.
func (f *fleet) budget() int { return max(10, f.size/40) }

// TestExpiringFleet lets all certificates of a fleet expire while the API is down. All
// agents recover without help, and no faster than the issuance budget allows.
func TestExpiringFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates an outage; not under -short")
	}
	f := newFleet(t, *agentsFlag)
	f.serve(t, 1000)
	f.enroll(t)
	require.Eventually(t, func() bool { return f.seen.count() == f.size }, fleetTimeout, 50*time.Millisecond, "all are enrolled")

	// Meanwhile the clocks of server and nodes jump past the end of every certificate.
	f.stop()
	require.NoError(t, f.w.db.advance(t.Context(), trust.CertTTL+24*time.Hour))
	require.Eventually(t, func() bool { return f.unreached.count() == f.size }, fleetTimeout, 50*time.Millisecond, "all have noticed the outage")
	f.seen.reset()
	f.issuer.reset()
	back := time.Now()
	rate := f.budget()
	f.serve(t, float64(rate))
	most := time.Duration(f.size/rate)*time.Second + fleetTimeout
	require.Eventually(t, func() bool { return f.seen.count() == f.size }, most, 50*time.Millisecond, "all have recovered")
	took := time.Since(back)

	signs := f.issuer.times()
	require.GreaterOrEqual(t, len(signs), f.size)
	// The bucket starts with one second's budget and is refilled at the rate. A signature is recorded some time
	// after the budget allowed it, so on a busy machine many may be recorded in one second: only the number
	// since the start is limited.
	for i, at := range signs {
		require.LessOrEqual(t, i, int(float64(rate)*at.Sub(back).Seconds())+rate, "certificates after %s", at.Sub(back))
	}
	t.Logf("expiring fleet: %d agents, all recovered after %s; budget %d/s, certificates %d, "+
		"at most %d in 1 s (burst %d), %.1f/s over the whole recovery; requests for recovery %d, at most %d in 1 s, rejected %d",
		f.size, took.Round(100*time.Millisecond), rate, len(signs), busiest(signs, time.Second), rate,
		float64(len(signs))/took.Seconds(), len(f.requests.times()), busiest(f.requests.times(), time.Second), f.rejected.count())
	f.end()
}

// busiest returns the largest number of events within any window.
func busiest(at []time.Time, window time.Duration) (most int) {
	first := 0
	for i := range at {
		for at[i].Sub(at[first]) >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// moments records the times of events.
type moments struct {
	mu sync.Mutex
	at []time.Time
}

func (m *moments) note() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = append(m.at, time.Now())
}

func (m *moments) times() []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.at)
}

func (m *moments) count() int { return len(m.times()) }

func (m *moments) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = nil
}

// names is a set of nodes.
type names struct {
	mu  sync.Mutex
	set map[string]bool
}

func (n *names) add(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.set == nil {
		n.set = map[string]bool{}
	}
	n.set[id] = true
}

func (n *names) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.set)
}

func (n *names) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.set = nil
}

// fleet is a world with many agents and one API on a real port.
type fleet struct {
	w      *world
	size   int
	auth   *authority
	issuer *countingIssuer
	seen   names // accepted
	// unreached are the nodes that could not connect.
	unreached names
	requests  moments
	rejected  moments

	address string
	server  *http.Server
	agents  sync.WaitGroup
	cancel  context.CancelFunc
}

// countingIssuer records when it signs.
type countingIssuer struct {
	nodeapi.Issuer
	moments
}

func (i *countingIssuer) Issue(ctx context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error) {
	i.note()
	return i.Issuer.Issue(ctx, csr, id)
}

// recordingStore records the accepted nodes.
type recordingStore struct {
	nodeStore
	seen *names
}

func (s recordingStore) RecordPoll(ctx context.Context, c nodeapi.Caller, poll wire.PollRequest) error {
	err := s.nodeStore.RecordPoll(ctx, c, poll)
	if err == nil {
		s.seen.add(c.NodeID)
	}
	return err
}

func newFleet(t *testing.T, size int) *fleet {
	t.Helper()
	f := &fleet{w: newWorld(t, true), size: size}
	var err error
	f.auth, err = newAuthority(f.w.db.clock, seeded(0, forCA))
	require.NoError(t, err)
	f.issuer = &countingIssuer{Issuer: f.auth}
	return f
}

// serve starts the API, on the same port each time.
func (f *fleet) serve(t *testing.T, rate float64) {
	t.Helper()
	store := recordingStore{f.w.nodeStore(), &f.seen}
	api := nodeapi.New(nodeapi.Config{Env: testEnv, Identities: store, Tasks: store, Heartbeats: store, Notifier: silent{}, Issuer: f.issuer, Grants: noWork{}, VerifierSets: noWork{},
		Now: f.w.db.clock.Now, IssueRate: rate, Metrics: metrics.New(prometheus.NewRegistry()),
		Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil }})
	server := api.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.w.cert, nil })
	server.Handler = f.counted(server.Handler)
	if f.address == "" {
		f.address = "127.0.0.1:0"
	}
	on, err := net.Listen("tcp", f.address)
	require.NoError(t, err)
	f.address, f.server = on.Addr().String(), server
	go func() { _ = server.ServeTLS(on, "", "") }()
}

func (f *fleet) stop() { _ = f.server.Close() }

// counted records recovery requests and responses with 429.
func (f *fleet) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if filepath.Base(r.URL.Path) != "recover" {
			h.ServeHTTP(w, r)
			return
		}
		f.requests.note()
		h.ServeHTTP(&watched{ResponseWriter: w, rejected: &f.rejected}, r)
	})
}

// watched records a response with 429.
type watched struct {
	http.ResponseWriter
	rejected *moments
}

func (w *watched) WriteHeader(status int) {
	if status == http.StatusTooManyRequests {
		w.rejected.note()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Now and Sleep implement the agents' clock.
func (f *fleet) Now() time.Time { return f.w.db.clock.Now() }

func (f *fleet) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// enroll registers every node and runs its agent.
func (f *fleet) enroll(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f.cancel = cancel
	t.Cleanup(f.end)
	for i := range f.size {
		id, err := f.w.register(ctx, uint64(i)+1)
		require.NoError(t, err)
		token, err := f.w.issue(ctx, id, trust.PurposeEnroll)
		require.NoError(t, err)
		root := filepath.Join(f.w.dir, id)
		m := newMachine(layout(id, root, f.w.caPath), nil, slog.New(slog.DiscardHandler), newDisk(root, seeded(uint64(i), forDisk)))
		m.conf.EnrollmentToken = schema.NewSecret(token)
		a, err := m.make(f, f.transportOf(id))
		require.NoError(t, err)
		f.agents.Go(func() { _ = a.Run(ctx) })
	}
}

// transportOf is the agent's own, except for the address and the clock.
func (f *fleet) transportOf(node string) func(*tls.Config) http.RoundTripper {
	return func(c *tls.Config) http.RoundTripper {
		c = c.Clone()
		c.Time = f.Now
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		return &http.Transport{TLSClientConfig: c, Protocols: &protocols, MaxIdleConns: 2,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.address)
				if err != nil {
					f.unreached.add(node)
				}
				return conn, err
			}}
	}
}

func (f *fleet) end() {
	f.cancel()
	f.stop()
	f.agents.Wait()
}
