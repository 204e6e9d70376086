package nodeapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// BenchmarkParkedPoll measures the server's memory and goroutines per open poll,
// including net/http and TLS. The agents run in another process.
func BenchmarkParkedPoll(b *testing.B) {
	const polls = 1000
	for _, proto := range []string{"HTTP1", "HTTP2"} {
		b.Run(proto, func(b *testing.B) {
			for b.Loop() {
				s := newSite(b, &fakeStore{})
				before, goroutines := usage()
				stop := s.agents(b, proto, polls)
				deadline := time.Now().Add(time.Minute)
				for s.wakes.waiting(s.node.NodeID) < polls && time.Now().Before(deadline) {
					time.Sleep(20 * time.Millisecond) //nolint:forbidigo // a benchmark waits for another process
				}
				require.Equal(b, polls, s.wakes.waiting(s.node.NodeID))
				after, more := usage()
				b.ReportMetric(float64(after-before)/polls/1024, "KiB/poll")
				b.ReportMetric(float64(more-goroutines)/polls, "goroutines/poll")
				stop()
			}
		})
	}
}

// BenchmarkHeartbeat measures the API's own cost of a poll with a heartbeat, without network
// and database, as the first and as a later request of a connection.
func BenchmarkHeartbeat(b *testing.B) {
	s, api := newAPI(b, &fakeStore{}, func(c *nodeapi.Config) { c.Log = slog.New(slog.DiscardHandler) })
	server, leaf := api.Server(nil), s.cert().Leaf
	body, err := json.Marshal(pollRequest(waitFor(0), func(r *wire.PollRequest) {
		r.Heartbeat = &wire.Heartbeat{AgentVersion: "v1.2.3", BootID: schema.NewID(), Phase: "ready",
			UptimeSeconds: 1234, Workloads: []task.Workload{}, At: time.Now()}
	}))
	require.NoError(b, err)
	for name, on := range map[string]func() context.Context{
		"first": func() context.Context { return server.ConnContext(b.Context(), nil) },
		"later": sync.OnceValue(func() context.Context { return server.ConnContext(b.Context(), nil) }),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequestWithContext(on(), http.MethodPost, "/internal/v1/nodes/"+s.node.NodeID+"/tasks/wait", bytes.NewReader(body))
				r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
				w := httptest.NewRecorder()
				server.Handler.ServeHTTP(w, r)
				require.Equal(b, http.StatusNoContent, w.Code)
			}
		})
	}
}

func usage() (bytes int64, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// agents starts a process that opens polls and holds them.
func (s *site) agents(b *testing.B, proto string, polls int) (stop func()) {
	b.Helper()
	dir, cert := b.TempDir(), s.cert()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(b, err)
	for name, text := range map[string]string{"ca.pem": certPEM(s.serverCA.cert), "cert.pem": certPEM(cert.Leaf),
		"key.pem": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))} {
		require.NoError(b, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestBenchmarkAgents$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), "BENCH_AGENTS="+dir, "BENCH_URL="+s.path("/tasks/wait"),
		"BENCH_PROTO="+proto, "BENCH_POLLS="+strconv.Itoa(polls))
	require.NoError(b, cmd.Start())
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
}

// TestBenchmarkAgents is the other process of BenchmarkParkedPoll and no test.
func TestBenchmarkAgents(t *testing.T) {
	dir := os.Getenv("BENCH_AGENTS")
	if dir == "" {
		return
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	polls, err := strconv.Atoi(os.Getenv("BENCH_POLLS"))
	require.NoError(t, err)
	ended := make(chan struct{})
	for range polls {
		c := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: os.Getenv("BENCH_PROTO") == "HTTP2",
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}}}
		go func() {
			_, _ = try(t.Context(), c, http.MethodPost, os.Getenv("BENCH_URL"), pollRequest(waitFor(wire.MaxPollTimeout)))
			ended <- struct{}{}
		}()
	}
	for range polls {
		<-ended
	}
}
