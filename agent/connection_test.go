package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// switchboard is a network of pipes with one listener. It counts the
// connections that were opened and tracks the open ones.
type switchboard struct {
	conns chan net.Conn
	done  chan struct{}

	mu     sync.Mutex
	opened int
	open   []net.Conn // the server's ends
}

func (s *switchboard) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case s.conns <- far:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	s.open = append(s.open, far)
	return &nearEnd{near, s, far}, nil
}

// nearEnd notes that the agent closed it.
type nearEnd struct {
	net.Conn
	on  *switchboard
	far net.Conn
}

func (n *nearEnd) Close() error {
	n.on.mu.Lock()
	n.on.open = slices.DeleteFunc(n.on.open, func(c net.Conn) bool { return c == n.far })
	n.on.mu.Unlock()
	return n.Conn.Close()
}

func (s *switchboard) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *switchboard) Close() error { return nil }

func (s *switchboard) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// counts returns how many connections were ever opened and how many are open.
func (s *switchboard) counts() (opened, open int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, len(s.open)
}

// tear ends every connection from the server's side.
func (s *switchboard) tear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		c.Close()
	}
}

// exchange is an agent with the real one's intervals and transport on a
// switchboard, in a bubble whose time is not the machine's.
type exchange struct {
	*agenttest.API
	lines *switchboard
	agent *running
	// delay is how late every answer is; a poll is over after this share of the
	// time it asked for.
	delay time.Duration
	share float64

	beaten     sync.Mutex
	heartbeats []time.Time
}

// bubble runs the test with an exchange that set may change before it begins.
func bubble(t *testing.T, set func(*exchange, *Deps), run func(*exchange)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &exchange{API: agenttest.NewQuiet(t), lines: &switchboard{conns: make(chan net.Conn), done: make(chan struct{})}, share: 1}
		d := Deps{Workloads: workload.Unmanaged{}}
		d.Transport = func(conf *tls.Config) http.RoundTripper {
			carrier := nodeapi.NewTransport(conf)
			carrier.DialContext = x.lines.dial
			return carrier
		}
		if set != nil {
			set(x, &d)
		}
		x.begin(t)
		c := configFor(x.API)
		install(x.API, c, x.ID, time.Now().Add(90*24*time.Hour))
		d.timing = new(defaultTiming())
		a, log := newAgent(t, c, d)
		x.agent = launch(t, a, log)
		run(x)
	})
}

// begin answers on the switchboard until the test ends.
func (x *exchange) begin(t *testing.T) {
	t.Helper()
	server := &http.Server{
		Handler: http.HandlerFunc(x.answer), TLSConfig: x.TLS(x.Server.Server(t)), ReadHeaderTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(x.lines, "", "") }()
	t.Cleanup(func() {
		close(x.lines.done)
		server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func (x *exchange) answer(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 {
		x.T.Errorf("%s came by %s", r.URL.Path, r.Proto)
	}
	if strings.HasSuffix(r.URL.Path, "/wait") {
		var poll wire.PollRequest
		if err := json.NewDecoder(r.Body).Decode(&poll); err != nil {
			x.T.Error(err)
		}
		if poll.Heartbeat != nil {
			x.beaten.Lock()
			x.heartbeats = append(x.heartbeats, time.Now())
			x.beaten.Unlock()
		}
		poll.WaitSeconds *= x.share
		body, _ := json.Marshal(poll)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	select {
	case <-time.After(x.delay):
	case <-x.lines.done:
	}
	x.Serve(w, r)
}

// rhythm requires that heartbeats came, none later after the one before than the
// agent's interval, and returns when.
func (x *exchange) rhythm() []time.Time {
	x.T.Helper()
	synctest.Wait()
	x.beaten.Lock()
	defer x.beaten.Unlock()
	require.NotEmpty(x.T, x.heartbeats)
	for i, at := range append(slices.Clone(x.heartbeats[1:]), time.Now()) {
		require.LessOrEqual(x.T, at.Sub(x.heartbeats[i]), wire.HeartbeatInterval, "heartbeat %d", i+1)
	}
	return slices.Clone(x.heartbeats)
}

// parked reports how many polls are open.
func (x *exchange) parked() int {
	synctest.Wait()
	x.API.Mu.Lock()
	defer x.API.Mu.Unlock()
	return x.Open
}

// An idle node needs one connection and one request for each poll, whether the server
// answers at once or late, and ends polls at the end of their time or before.
func TestIdleNodeUsesOneConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		delay    time.Duration
		share    float64
		requests int // in ten minutes
	}{
		"prompt":         {0, 1, 11},
		"short polls":    {0, 0.8, 14},
		"slow":           {3 * time.Second / 2, 1, 11},
		"slow and short": {time.Second, 0.8, 14},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(x *exchange, _ *Deps) { x.delay, x.share = c.delay, c.share }, func(x *exchange) {
				<-time.After(10 * time.Minute)
				opened, open := x.lines.counts()
				require.Equal(x.T, []int{1, 1}, []int{opened, open})
				require.Len(x.T, x.rhythm(), c.requests, "a heartbeat with each poll")
				require.Len(x.T, x.Seen(), c.requests)
			})
		})
	}
}

// A change of the node ends the open poll after a pause, and the next poll reports it.
// Many changes end one poll a pause.
func TestChangesReportedDuringPoll(t *testing.T) {
	bubble(t, nil, func(x *exchange) {
		<-time.After(45 * time.Second)
		require.Equal(x.T, 1, x.parked())
		before := len(x.rhythm())
		x.agent.change()
		<-time.After(x.agent.timing.pause)
		require.Len(x.T, x.rhythm(), before+1)
		require.Equal(x.T, 1, x.parked())
		opened, open := x.lines.counts()
		require.Equal(x.T, []int{2, 1}, []int{opened, open})

		for range 100 {
			x.agent.change()
			<-time.After(x.agent.timing.pause / 10)
		}
		require.InDelta(x.T, before+11, len(x.rhythm()), 1)
		<-time.After(10 * time.Minute)
		require.InDelta(x.T, before+22, len(x.rhythm()), 2)
		require.NotContains(x.T, x.agent.log.String(), "poll failed")
	})
}

// A quick task reports before the next poll, on the same connection.
func TestQuickTaskUsesOneConnection(t *testing.T) {
	var runs atomic.Int32
	bubble(t, func(_ *exchange, d *Deps) {
		d.Executors = script{task.WorkloadCordon: counting(&runs)}.executors()
	}, func(x *exchange) {
		for seq := range int64(3) {
			<-time.After(time.Minute)
			x.Offers <- x.OfferOf(x.Payload(task.WorkloadCordon, seq+1, nil), 1)
			require.Equal(x.T, 1, x.parked())
			require.Equal(x.T, int(seq)+1, x.Count("result"), "before the next poll")
		}
		opened, open := x.lines.counts()
		require.Equal(x.T, []int{1, 1}, []int{opened, open})
	})
}

// A longer task's progress and result go next to the poll on one more connection, the
// same one each time, and that goes when the task is over.
func TestTaskOpensSecondConnection(t *testing.T) {
	var started chan string
	var end chan struct{}
	bubble(t, func(_ *exchange, d *Deps) {
		started, end = make(chan string, 1), make(chan struct{})
		d.Executors = script{task.NodeProbe: held(started, end)}.executors()
	}, func(x *exchange) {
		<-time.After(time.Minute)
		p := x.Payload(task.NodeProbe, 1, nil)
		x.Offers <- x.OfferOf(p, 1)
		<-started
		<-time.After(50 * time.Second)
		require.Equal(x.T, 2, x.Count("progress"))
		require.Equal(x.T, 1, x.parked())
		opened, open := x.lines.counts()
		require.Equal(x.T, []int{2, 2}, []int{opened, open})
		close(end)
		synctest.Wait()
		require.Equal(x.T, 1, x.Count("result"), "at once")
		<-time.After(time.Minute)
		x.rhythm()
		opened, open = x.lines.counts()
		require.Equal(x.T, []int{2, 1}, []int{opened, open})
	})
}

func TestReconnectAfterPollConnectionDies(t *testing.T) {
	bubble(t, nil, func(x *exchange) {
		<-time.After(45 * time.Second)
		x.lines.tear()
		<-time.After(2 * time.Second)
		require.Equal(x.T, 1, x.parked())
		<-time.After(5 * time.Minute)
		x.rhythm()
		opened, open := x.lines.counts()
		require.Equal(x.T, 1, open)
		require.LessOrEqual(x.T, opened, 3, "one that was late with its heartbeat may have needed another")
	})
}

// A server that never ends a poll receives heartbeats before the node counts as silent.
func TestHeartbeatAfterHungPoll(t *testing.T) {
	bubble(t, func(x *exchange, _ *Deps) {
		x.OnWait = func(int) error {
			<-x.lines.done
			return nil
		}
	}, func(x *exchange) {
		<-time.After(10 * time.Minute)
		x.beaten.Lock()
		defer x.beaten.Unlock()
		for i, at := range x.heartbeats[1:] {
			require.Less(x.T, at.Sub(x.heartbeats[i]), lifecycle.SilentAfter/2)
		}
		require.GreaterOrEqual(x.T, len(x.heartbeats), 5)
	})
}

// hungDriver is a workload driver whose calls do not end with their context.
type hungDriver struct {
	workload.Driver
	hung   *atomic.Int32
	answer chan struct{}
}

func (d hungDriver) List(ctx context.Context) ([]task.Workload, error) {
	d.hung.Add(1)
	defer d.hung.Add(-1)
	<-d.answer
	return d.Driver.List(ctx)
}

// A workload driver that does not answer delays no poll and no task. The heartbeats
// report it, no calls accumulate, and the agent stops.
func TestHungWorkloadDriver(t *testing.T) {
	d := hungDriver{Driver: workload.Unmanaged{}, hung: new(atomic.Int32)}
	var runs atomic.Int32
	bubble(t, func(_ *exchange, deps *Deps) {
		d.answer = make(chan struct{})
		deps.Workloads, deps.Executors = d, script{task.NodeProbe: counting(&runs)}.executors()
	}, func(x *exchange) {
		defer close(d.answer)
		<-time.After(10 * time.Minute)
		require.Equal(x.T, 1, x.parked())
		require.InDelta(x.T, 12, x.Count("wait"), 1)
		require.Equal(x.T, int32(1), d.hung.Load())
		require.Greater(x.T, len(x.rhythm()), 8)
		x.Note(func() {
			last := x.Heartbeats[len(x.Heartbeats)-1]
			require.Len(x.T, last.Workloads, 1)
			require.Contains(x.T, last.Workloads[0].Name, "no answer from the workload driver since")
		})
		p := x.Payload(task.NodeProbe, 1, nil)
		x.Offers <- x.OfferOf(p, 1)
		synctest.Wait()
		require.Equal(x.T, int32(1), runs.Load())
		begin := time.Now()
		x.agent.halt()
		require.Less(x.T, time.Since(begin), 10*time.Second)
	})
}

// When the driver answers again, the next heartbeat has its list.
func TestRecoveredWorkloadDriver(t *testing.T) {
	d := hungDriver{Driver: workload.Unmanaged{}, hung: new(atomic.Int32)}
	bubble(t, func(_ *exchange, deps *Deps) {
		d.answer = make(chan struct{})
		deps.Workloads = d
	}, func(x *exchange) {
		<-time.After(5 * time.Minute)
		close(d.answer)
		<-time.After(2 * time.Minute)
		x.Note(func() { require.Empty(x.T, x.Heartbeats[len(x.Heartbeats)-1].Workloads) })
		x.rhythm()
	})
}
