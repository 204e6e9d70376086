package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// running is a test program that runs.
type running struct {
	t    *testing.T
	addr string
	stop context.CancelFunc
	code chan int
	log  *harness.Buffer
}

// launch runs a program with a metrics listener, and stops it when the test ends.
func launch(t *testing.T, change func(c *testConfig), start func(ctx context.Context, p *Process) error) *running {
	t.Helper()
	r := &running{t: t, addr: harness.FreeAddress(t), code: make(chan int, 1), log: &harness.Buffer{}}
	c := newConfig()
	if change != nil {
		change(c)
	}
	vars := complete(t)
	vars["GPUAAS_METRICS_ADDR"], vars["GPUAAS_HEALTH_INTERVAL"] = r.addr, "5ms"
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.code <- Main(ctx, testProgram(c, start), nil, environ(vars), io.Discard, r.log) }()
	t.Cleanup(cancel)
	return r
}

func (r *running) get(path string) (status int, body string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + r.addr + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(r.t, err)
	return res.StatusCode, string(text)
}

func (r *running) becomes(path string, status int, contains string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		got, body := r.get(path)
		return got == status && strings.Contains(body, contains)
	}, harness.Timeout, 5*time.Millisecond, "%s %d %s", path, status, contains)
}

func (r *running) exit() int {
	r.t.Helper()
	return harness.Receive(r.t, "the program's exit code", r.code)
}

// No goroutine of the process is left when Main returns, and what goroutines use
// is closed after they have ended.
func TestGoroutinesEndBeforeClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	var order []string
	var mu sync.Mutex
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	r := launch(t, nil, func(ctx context.Context, p *Process) error {
		p.OnClose(func() { note("first closed last") })
		p.OnClose(func() { note("second closed first") })
		for range 3 {
			p.Go(ctx, "worker", func(ctx context.Context) error {
				<-ctx.Done()
				note("ended")
				return nil
			})
		}
		ln, err := p.Listen(ctx, "TEST_ADDR", "127.0.0.1:0")
		require.NoError(t, err)
		p.Serve(ctx, "test", ln, &http.Server{ReadHeaderTimeout: harness.Timeout, Handler: http.NotFoundHandler()})
		p.Health.Add("postgres", func(context.Context) error { return nil })
		return nil
	})
	r.becomes("/readyz", http.StatusOK, "ok")
	r.stop()
	require.Equal(t, schema.ExitDone, r.exit())
	require.Equal(t, []string{"ended", "ended", "ended", "second closed first", "first closed last"}, order)
	harness.NoLeak(t, before)
}

func TestFirstFailureStopsTheProcess(t *testing.T) {
	closed := false
	r := launch(t, nil, func(ctx context.Context, p *Process) error {
		p.OnClose(func() { closed = true })
		p.Go(ctx, "survivor", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		p.Go(ctx, "relay", func(context.Context) error { return errors.New("broken") })
		return nil
	})
	require.Equal(t, schema.ExitFailed, r.exit())
	require.True(t, closed)
	require.Contains(t, r.log.String(), "relay: broken")
}

// A goroutine that ignores the stop is named, and what it uses stays open.
func TestStuckGoroutineIsNamed(t *testing.T) {
	release, closed := make(chan struct{}), atomic.Bool{}
	defer close(release)
	r := launch(t, func(c *testConfig) { c.DrainTimeout = time.Millisecond }, func(ctx context.Context, p *Process) error {
		p.OnClose(func() { closed.Store(true) })
		p.Go(ctx, "stubborn", func(context.Context) error { <-release; return nil })
		return nil
	})
	r.becomes("/readyz", http.StatusOK, "ok")
	r.stop()
	require.Equal(t, schema.ExitFailed, r.exit())
	require.Contains(t, r.log.String(), "still running after the drain timeout: stubborn")
	require.False(t, closed.Load())
}

// The process exits after the lame-duck period.
func TestLameDuck(t *testing.T) {
	const period = 100 * time.Millisecond
	r := launch(t, func(c *testConfig) { c.LameDuck = period }, func(context.Context, *Process) error { return nil })
	r.becomes("/readyz", http.StatusOK, "ok")
	begin := time.Now()
	r.stop()
	require.Equal(t, schema.ExitDone, r.exit())
	require.GreaterOrEqual(t, time.Since(begin), period)
}

// During the lame-duck period the process is unready and works on. A failure ends it.
func TestFailureEndsTheLameDuck(t *testing.T) {
	broken, stopped := make(chan struct{}), make(chan struct{})
	r := launch(t, func(c *testConfig) { c.LameDuck = time.Hour }, func(ctx context.Context, p *Process) error {
		p.Go(ctx, "work", func(context.Context) error { <-broken; return errors.New("broken") })
		p.Go(ctx, "other work", func(ctx context.Context) error {
			<-ctx.Done()
			close(stopped)
			return nil
		})
		return nil
	})
	r.becomes("/readyz", http.StatusOK, "ok")
	r.stop()
	r.becomes("/readyz", http.StatusServiceUnavailable, "stopping")
	status, _ := r.get("/livez")
	require.Equal(t, http.StatusOK, status)
	select {
	case <-stopped:
		require.Fail(t, "the work ended during the lame-duck period")
	default:
	}
	close(broken)
	require.Equal(t, schema.ExitFailed, r.exit())
	harness.Receive(t, "the end of the other work", stopped)
}

// Readiness follows each dependency, names it, and can leave it out.
func TestReadinessFollowsDependencies(t *testing.T) {
	var postgres, vault atomic.Bool
	probe := func(down *atomic.Bool) func(context.Context) error {
		return func(context.Context) error {
			if down.Load() {
				return schema.NewError(schema.KindServiceUnavailable, "cause at 10.0.0.7")
			}
			return nil
		}
	}
	var health *Health
	r := launch(t, nil, func(_ context.Context, p *Process) error {
		health = p.Health
		p.Health.Add("postgres", probe(&postgres))
		p.Health.Add("vault", probe(&vault))
		return nil
	})
	r.becomes("/readyz", http.StatusOK, `{"status":"ok"}`)
	postgres.Store(true)
	r.becomes("/readyz", http.StatusServiceUnavailable, "postgres unavailable")
	require.Len(t, health.Unavailable(), 1)
	require.ErrorContains(t, health.Unavailable()["postgres"], "cause at 10.0.0.7")
	vault.Store(true)
	r.becomes("/readyz", http.StatusServiceUnavailable, "postgres, vault unavailable")
	_, body := r.get("/readyz")
	var envelope schema.ErrorBody
	require.NoError(t, json.Unmarshal([]byte(body), &envelope))
	require.Equal(t, schema.KindServiceUnavailable, envelope.Error.Code)
	require.Equal(t, "not_ready", envelope.Error.Reason)
	require.NotContains(t, body, "10.0.0.7", "the cause is for the log")
	r.becomes("/readyz?exclude=postgres&exclude=vault", http.StatusOK, "ok")
	r.becomes("/livez", http.StatusOK, "ok")
	r.becomes("/metrics", http.StatusOK, `gpuaas_dependency_up{name="vault"} 0`)
	postgres.Store(false)
	vault.Store(false)
	r.becomes("/readyz", http.StatusOK, "ok")
	require.Empty(t, health.Unavailable())
	r.becomes("/metrics", http.StatusOK, `gpuaas_build_info{`)
	require.Contains(t, r.log.String(), "cause at 10.0.0.7")
	require.Contains(t, r.log.String(), "dependency is available again")
}

// A start waits for its services, says for which, and ends with a stop.
func TestConnectRetriesUntilStopped(t *testing.T) {
	before := goleak.IgnoreCurrent()
	r := launch(t, func(c *testConfig) { c.LameDuck = time.Hour }, func(ctx context.Context, p *Process) error {
		return p.Connect(ctx, Dependency{"Postgres", func(context.Context) error { return errors.New("connection refused") }})
	})
	r.becomes("/readyz", http.StatusServiceUnavailable, "not ready: waiting for Postgres")
	harness.Eventually(t, "a log line", func() bool { return strings.Contains(r.log.String(), "connection refused") })
	r.stop()
	require.Equal(t, schema.ExitDone, r.exit())
	harness.NoLeak(t, before)
}

func TestConnectFailsOnInvalidSetting(t *testing.T) {
	r := launch(t, nil, func(ctx context.Context, p *Process) error {
		return p.Connect(ctx, Dependency{"Postgres", func(context.Context) error {
			return schema.NewError(schema.KindInvalidRequest, "malformed URL")
		}})
	})
	require.Equal(t, schema.ExitFailed, r.exit())
	require.Contains(t, r.log.String(), "malformed URL")
}

func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := launch(t, nil, func(ctx context.Context, p *Process) error {
		_, err := p.Listen(ctx, "TEST_ADDR", taken.Addr().String())
		return err
	})
	require.Equal(t, schema.ExitFailed, r.exit())
	require.Contains(t, r.log.String(), "TEST_ADDR")
	require.Contains(t, r.log.String(), taken.Addr().String())
}

// systemd learns of the start and the stop.
func TestNotifiesSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	require.NoError(t, os.Unsetenv("WATCHDOG_PID"))
	r := launch(t, nil, func(context.Context, *Process) error { return nil })
	seen := map[string]bool{}
	await := func(states ...string) {
		require.NoError(t, socket.SetReadDeadline(time.Now().Add(harness.Timeout)))
		for buf := make([]byte, 64); ; {
			missing := false
			for _, s := range states {
				missing = missing || !seen[s]
			}
			if !missing {
				return
			}
			n, err := socket.Read(buf)
			require.NoError(t, err)
			seen[string(buf[:n])] = true
		}
	}
	await("READY=1", "WATCHDOG=1")
	r.stop()
	await("STOPPING=1")
	require.Equal(t, schema.ExitDone, r.exit())
}
