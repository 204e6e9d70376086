package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/envfile"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

var _ http.RoundTripper = carrier{}

// testClock is a clock that only a test moves.
type testClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *testClock) Sleep(ctx context.Context, d time.Duration) error {
	c.add(d)
	return ctx.Err()
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// wire carries requests to a fakeAPI without sockets. It presents certificates
// as a TLS handshake does.
type wireLog struct {
	f *agenttest.API
	// accept are the issuers that the server names; nil asks for any.
	accept func() [][]byte
	// lose decides about each request, by its count: "request" never arrives,
	// "answer" is lost after the server's work, and of a "copied" one a copy
	// arrives later, whose answer is dropped.
	lose func(n int, call string) string // a call is "POST /tasks/wait"
	n    atomic.Int64
	down bool
}

var errLost = errors.New("connection reset")

func (w *wireLog) transport(conf *tls.Config) http.RoundTripper { return carrier{w, conf} }

type carrier struct {
	*wireLog
	conf *tls.Config
}

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	state := &tls.ConnectionState{}
	if c.down {
		return nil, errLost
	}
	if c.conf.GetClientCertificate != nil {
		info := &tls.CertificateRequestInfo{Version: tls.VersionTLS13, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}}
		if c.accept != nil {
			info.AcceptableCAs = c.accept()
		}
		cert, err := c.conf.GetClientCertificate(info)
		if err != nil {
			return nil, err
		}
		for _, der := range cert.Certificate {
			parsed, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, err
			}
			state.PeerCertificates = append(state.PeerCertificates, parsed)
		}
	}
	n := int(c.n.Add(1))
	lost := ""
	if c.lose != nil {
		lost = c.lose(n, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/internal/v1/nodes/"+c.f.ID.NodeID))
	}
	if lost == "request" {
		return nil, errLost
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	arrive := func() *http.Response {
		in := r.Clone(r.Context())
		in.TLS, in.Body = state, io.NopCloser(bytes.NewReader(body))
		rec := httptest.NewRecorder()
		c.f.Serve(rec, in)
		return rec.Result()
	}
	res := arrive()
	if lost == "answer" {
		return nil, errLost
	}
	if lost == "copied" {
		arrive()
	}
	return res, nil
}

// errCrash is what a crashing disk panics with: the process is gone.
var errCrash = errors.New("crash")

// stepDisk counts the steps that change a disk and breaks one of them.
type stepDisk struct {
	disk.OS
	n     int
	at    int // 0: none
	crash bool
	err   error // ENOSPC when nil
	// stays broken from at on
	forever bool
}

func (d *stepDisk) step() error {
	d.n++
	if d.at == 0 || d.n != d.at && (!d.forever || d.n < d.at) {
		return nil
	}
	if d.crash {
		panic(errCrash)
	}
	if d.err != nil {
		return d.err
	}
	return syscall.ENOSPC
}

func (d *stepDisk) MkdirAll(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := d.step(); err != nil {
		return err
	}
	return d.OS.MkdirAll(path)
}

func (d *stepDisk) Create(path string) (disk.File, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	f, err := d.OS.Create(path)
	return &stepFile{f, d}, err
}

func (d *stepDisk) Rename(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.OS.Rename(from, to)
}

func (d *stepDisk) Remove(path string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.OS.Remove(path)
}

func (d *stepDisk) Wipe(path string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.OS.Wipe(path)
}

func (d *stepDisk) SyncDir(string) error { return d.step() }

// stepFile tears a write: half of it is on the disk, whether it fails or the
// machine stops.
type stepFile struct {
	disk.File
	disk *stepDisk
}

func (f *stepFile) Write(b []byte) (int, error) {
	done := false
	defer func() {
		if !done {
			_, _ = f.File.Write(b[:len(b)/2])
			_ = f.File.Close()
		}
	}()
	if err := f.disk.step(); err != nil {
		return len(b) / 2, err
	}
	done = true
	return f.File.Write(b)
}

func (f *stepFile) Sync() error {
	if err := f.disk.step(); err != nil {
		return err
	}
	return nil // the page cache is the disk here
}

func (f *stepFile) Close() error { return f.File.Close() }

// rig is one node with its server. The test advances it step by step.
type rig struct {
	t     *testing.T
	f     *agenttest.API
	book  *agenttest.Book
	clock *testClock // of the server
	local *testClock // of the node
	wire  *wireLog
	disk  *stepDisk
	conf  Config
	log   *agenttest.LogBuffer
	agent *Agent
}

// newRig makes a node that is registered and not enrolled.
func newRig(t *testing.T) *rig {
	t.Helper()
	begin := time.Now().Truncate(time.Second)
	r := &rig{t: t, f: agenttest.NewQuiet(t), clock: &testClock{at: begin}, local: &testClock{at: begin}, disk: &stepDisk{}, log: &agenttest.LogBuffer{}}
	r.book = agenttest.NewBook(r.f, r.clock.Now)
	r.wire = &wireLog{f: r.f}
	r.conf = configIn(r.f, memoryFolder(t))
	r.conf.WorkloadDriver = inventory.DriverNone
	r.conf.EnvFile = r.conf.StateDir + ".env"
	r.setToken(r.book.Token())
	t.Cleanup(func() {
		if r.agent != nil {
			r.agent.Close()
		}
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// setToken writes the env file, as an operator's command does.
func (r *rig) setToken(token string) {
	r.t.Helper()
	text := "# kept\nGPUAAS_NODE_ID=" + r.conf.NodeID + "\n" + envfile.TokenVar + "=\"" + token + "\"\nGPUAAS_ENV=test\n"
	require.NoError(r.t, os.WriteFile(r.conf.EnvFile, []byte(text), 0o600))
}

func (r *rig) envToken() string {
	r.t.Helper()
	text, err := os.ReadFile(r.conf.EnvFile)
	require.NoError(r.t, err)
	vars, err := envfile.Parse(string(text))
	require.NoError(r.t, err)
	return vars[envfile.TokenVar]
}

// boot restarts the agent, as after a crash, with the env file's token. It
// returns false when the disk crashed it.
func (r *rig) boot() (up bool) {
	r.t.Helper()
	if r.agent != nil {
		r.agent.Close()
		r.agent = nil
	}
	defer r.crashed(&up)
	c := r.conf
	c.EnrollmentToken = schema.NewSecret(r.envToken())
	a, err := New(c, Deps{
		FS: r.disk, Clock: r.local, Transport: r.wire.transport, Log: slog.New(slog.NewJSONHandler(r.log, nil)),
		PollTimeout: time.Millisecond, Workloads: workload.Unmanaged{},
		Reload: func() (Config, error) {
			n := c
			n.EnrollmentToken = schema.NewSecret(r.envToken())
			return n, nil
		},
	})
	if err != nil {
		return false
	}
	r.agent = a
	return true
}

func (r *rig) crashed(up *bool) {
	if p := recover(); p != nil {
		if err, ok := p.(error); !ok || !errors.Is(err, errCrash) {
			panic(p)
		}
		*up = false
		r.disk.at = 0
	}
}

// turn is the outcome of one step; up is false when the disk crashed the agent.
type turn struct {
	identity.Outcome
	poll error
	up   bool
}

func (r *rig) step() (s turn) {
	r.t.Helper()
	s.up = true
	defer r.crashed(&s.up)
	s.Outcome, s.poll = r.agent.RunOnce(r.t.Context())
	return s
}

// pass advances both clocks.
func (r *rig) pass(d time.Duration) {
	r.clock.add(d)
	r.local.add(d)
}

// converge steps, restarting after crashes and waiting as long as each outcome asks, until a
// poll succeeds with an identity that the server accepts.
func (r *rig) converge() {
	r.t.Helper()
	for range 60 {
		if r.agent == nil && !r.boot() {
			r.pass(time.Second)
			continue
		}
		out := r.step()
		if !out.up {
			r.agent.Close()
			r.agent = nil
			continue
		}
		if out.Removed {
			return
		}
		if facts, _, ok := r.agent.Certificate(); ok && out.Ready && out.poll == nil && r.book.Accepts(facts.Serial) {
			return
		}
		r.pass(min(max(out.Wait, time.Second), 10*time.Minute))
	}
	r.t.Fatal("the node never came back")
}

// enrolled is a rig whose node polls.
func enrolled(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.converge()
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll}, r.book.Via)
	return r
}

// due advances to the renewal of the identity in use.
func (r *rig) due() {
	r.t.Helper()
	k := r.agent.identity
	if k.Current() == nil {
		r.agent.ReconcileIdentity(r.t.Context())
	}
	r.pass(k.RenewAt(k.Current()).Sub(r.agent.clock.Now()) + time.Second)
}

func (r *rig) serial() string {
	r.t.Helper()
	facts, _, ok := r.agent.Certificate()
	require.True(r.t, ok)
	return facts.Serial
}

func (r *rig) logged(text string) bool { return strings.Contains(r.log.String(), text) }

var _ io.Writer = (*agenttest.LogBuffer)(nil)
