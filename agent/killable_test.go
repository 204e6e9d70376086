package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// errKilled is the error of every outside call of a killed process.
var errKilled = errors.New("this process was killed")

// killable counts the outside effects of one agent process as steps and kills the
// process before or after one of them. Later effects are suppressed.
type killable struct {
	mu    sync.Mutex
	n     int
	at    int // 0: it lives
	after bool
	dead  bool
	kill  context.CancelFunc
}

// step runs one outside effect unless the process was killed.
func (m *killable) step(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errKilled
	}
	m.n++
	if m.n == m.at && !m.after {
		return m.die()
	}
	err := do()
	if m.n == m.at {
		return m.die()
	}
	return err
}

func (m *killable) die() error {
	m.dead = true
	m.kill()
	return errKilled
}

// isKilled reports whether the process was killed.
func (m *killable) isKilled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// killableDisk is a disk whose every change is a step.
type killableDisk struct {
	disk.OS
	m *killable
}

func (d killableDisk) MkdirAll(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return d.m.step(func() error { return d.OS.MkdirAll(path) })
}

func (d killableDisk) Create(path string) (f disk.File, err error) {
	err = d.m.step(func() (err error) {
		f, err = d.OS.Create(path)
		return err
	})
	return killableFile{f, d.m}, err
}

func (d killableDisk) Rename(from, to string) error {
	return d.m.step(func() error { return d.OS.Rename(from, to) })
}

func (d killableDisk) Remove(path string) error {
	return d.m.step(func() error { return d.OS.Remove(path) })
}

func (d killableDisk) Wipe(path string) error {
	return d.m.step(func() error { return d.OS.Wipe(path) })
}

// SyncDir does nothing: a killed process leaves what it wrote.
func (d killableDisk) SyncDir(string) error { return d.m.step(func() error { return nil }) }

// killableFile leaves half of a write that the process was killed before.
type killableFile struct {
	disk.File
	m *killable
}

func (f killableFile) Write(b []byte) (n int, err error) {
	alive := !f.m.isKilled()
	err = f.m.step(func() (err error) {
		n, err = f.File.Write(b)
		return err
	})
	if alive && n == 0 && errors.Is(err, errKilled) {
		_, _ = f.File.Write(b[:len(b)/2])
	}
	return n, err
}

func (f killableFile) Sync() error { return f.m.step(func() error { return nil }) }

// taskServer is the server's side of one task.
type taskServer struct {
	f     *agenttest.API
	draws *rand.Rand // decides about lost and doubled requests; nil for none
	task  task.Payload

	mu      sync.Mutex
	epoch   int64
	result  *task.Result
	faults  []string
	effects map[string]int
}

// over reports whether the task's result is known.
func (d *taskServer) over() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.result != nil
}

func (d *taskServer) fault(text string) { d.faults = append(d.faults, text) }

// did records an effect outside the process that had it.
func (d *taskServer) did(m *killable, what string) error {
	return m.step(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.effects[what]++
		return nil
	})
}

// processTransport carries one process's requests to the task server.
type processTransport struct {
	*taskServer
	m    *killable
	conf *tls.Config
}

func (d *taskServer) transport(m *killable) func(*tls.Config) http.RoundTripper {
	return func(conf *tls.Config) http.RoundTripper { return processTransport{taskServer: d, m: m, conf: conf} }
}

// RoundTrip implements http.RoundTripper.
func (l processTransport) RoundTrip(r *http.Request) (res *http.Response, err error) {
	if _, err := l.conf.GetClientCertificate(&tls.CertificateRequestInfo{}); err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	err = l.m.step(func() error {
		fate := 0
		if l.draws != nil {
			fate = l.draws.IntN(16)
		}
		if fate == 1 { // never arrives
			return errLost
		}
		if fate == 2 { // arrives twice
			l.answer(r, body)
		}
		status, text := l.answer(r, body)
		res = &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(text)), Header: http.Header{}}
		if fate == 3 { // its answer is lost
			return errLost
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (d *taskServer) answer(r *http.Request, body []byte) (status int, text []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	var answer any
	var err error
	switch parts[len(parts)-1] {
	case "wait":
		if answer = d.wait(body); answer == nil {
			return http.StatusNoContent, nil
		}
	case "progress":
		answer, err = d.progress(body)
	case "result":
		answer, err = struct{}{}, d.take(body)
	default:
		err = schema.NewError(schema.KindNotFound, "no such path")
	}
	status = http.StatusOK
	if err != nil {
		e := schema.AsError(err)
		status, answer = e.Kind.Info().HTTP, e.Body("c")
	}
	text, _ = json.Marshal(answer)
	return status, text
}

// wait offers the task under a new lease whenever the node does not hold it, as if
// the previous lease had expired.
func (d *taskServer) wait(body []byte) any {
	var poll wire.PollRequest
	if err := json.Unmarshal(body, &poll); err != nil || d.result != nil || slices.Contains(poll.HeldTasks, d.task.TaskID) {
		return nil
	}
	d.epoch++
	return d.f.Granted(d.f.OfferOf(d.task, d.epoch), poll.Nonce)
}

func (d *taskServer) progress(body []byte) (any, error) {
	var p task.Progress
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "%v", err)
	}
	if d.result != nil || p.LeaseEpoch != d.epoch {
		return nil, schema.NewError(schema.KindLeaseLost, "lease %d, not %d", d.epoch, p.LeaseEpoch)
	}
	return wire.ProgressResponse{}, nil
}

// take stores the first result; every later one must be the same.
func (d *taskServer) take(body []byte) error {
	var r task.Result
	if err := schema.DecodeStrict(body, wire.MaxResultBytes, &r); err != nil {
		return err
	}
	epoch := r.LeaseEpoch
	r.LeaseEpoch = 0
	was, _ := json.Marshal(d.result)
	is, _ := json.Marshal(&r)
	switch {
	case d.result != nil && !bytes.Equal(was, is):
		d.fault("another result: " + string(is) + " after " + string(was))
	case epoch != d.epoch:
		return schema.NewError(schema.KindLeaseLost, "lease %d, not %s", d.epoch, strconv.FormatInt(epoch, 10))
	case d.result == nil:
		d.result = &r
	}
	return nil
}
