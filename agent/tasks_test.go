package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// script is a list of executors that do what a test says.
type script map[task.Type]func(ctx context.Context, t Task) (any, error)

func (s script) executors() map[task.Type]Executor {
	x := map[task.Type]Executor{}
	for typ, run := range s {
		x[typ] = Executor{Check: func(json.RawMessage) error { return nil }, Run: run}
	}
	return x
}

// counting is an executor that counts its runs.
func counting(n *atomic.Int32) func(context.Context, Task) (any, error) {
	return func(context.Context, Task) (any, error) { return n.Add(1), nil }
}

// held blocks until its context or the release channel ends it.
func held(started chan<- string, release <-chan struct{}) func(context.Context, Task) (any, error) {
	return func(ctx context.Context, t Task) (any, error) {
		started <- t.TaskID
		select {
		case <-release:
			return "done", nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func TestFinishedTaskOfferedAgain(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	var runs atomic.Int32
	start(t, f.config(), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	p := f.payload(task.WorkloadCordon, 1, nil)
	for epoch := int64(1); epoch <= 3; epoch++ {
		f.offers <- f.offerOf(p, epoch)
		f.until("the result of the epoch", func() bool {
			n := len(f.results)
			return n > 0 && f.results[n-1].LeaseEpoch == epoch
		})
	}
	require.Equal(t, int32(1), runs.Load())
	first := f.results[0].Result
	for _, r := range f.results {
		r.LeaseEpoch = first.LeaseEpoch
		require.Equal(t, first, r.Result)
	}
}

func TestNewLeaseOfARunningTask(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	started, release := make(chan string, 1), make(chan struct{})
	a := start(t, f.config(), Deps{Executors: script{task.WorkloadCordon: held(started, release)}.executors()})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	<-started
	f.until("the task in have", func() bool { return f.haves[len(f.haves)-1] == p.TaskID })
	f.offers <- f.offerOf(p, 2)

	forged := f.offerOf(p, 9)
	forged.Envelope = json.RawMessage(strings.Replace(string(forged.Envelope), `"sig":"`, `"sig":"AAAA`, 1))
	f.offers <- forged
	other := p
	other.Params = json.RawMessage(`{}`)
	f.offers <- f.offerOf(other, 9)
	eventually(t, "both refusals in the log", func() bool { return strings.Count(a.log.String(), `"task refused"`) == 2 })
	require.Contains(t, a.log.String(), refusedDigest)
	close(release)
	r := f.result(p.TaskID)
	require.Equal(t, task.Succeeded, r.Status)
	require.Equal(t, int64(2), r.LeaseEpoch)
	require.Empty(t, started)
}

// TestOfferedAgainWhileItsResultIsPosted: the new lease arrives between the post
// and its answer; the server gets the result under that lease too.
func TestOfferedAgainWhileItsResultIsPosted(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	a, log := newAgent(t, f.config(), Deps{Executors: script{task.WorkloadCordon: counting(new(atomic.Int32))}.executors()})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.onResult = func(n int, _ string, _ task.Result) error {
		if n == 1 {
			f.offers <- f.offerOf(p, 2)
			eventually(t, "the second offer", func() bool { return strings.Contains(log.String(), "task offered again") })
		}
		return nil
	}
	launch(t, a, log)
	f.offers <- f.offerOf(p, 1)
	f.until("the result under the second lease", func() bool {
		return len(f.results) > 0 && f.results[len(f.results)-1].LeaseEpoch == 2
	})
	eventually(t, "the report in the journal", func() bool { return len(a.tasks.journal.have()) == 0 })
}

func TestSequenceFloorOutlivesTheJournal(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	var runs atomic.Int32
	o := Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()}
	a := start(t, c, o)
	p := f.payload(task.WorkloadCordon, 5, nil)
	f.offers <- f.offerOf(p, 1)
	f.result(p.TaskID)
	eventually(t, "the report in the journal", func() bool { return len(a.tasks.journal.have()) == 0 })
	require.NoError(t, a.tasks.journal.prune(p.ExpiresAt.Add(keepAfterExpiry+time.Second)))
	_, known := a.tasks.journal.get(p.TaskID)
	require.False(t, known)
	a.halt()
	f.deserted()

	start(t, c, o)
	replay := f.payload(task.WorkloadCordon, 4, nil)
	for _, p := range []task.Payload{p, replay} {
		f.note(func() { f.results = nil })
		f.offers <- f.offerOf(p, 2)
		r := f.result(p.TaskID)
		require.Equal(t, schema.KindTaskRefused, r.Code)
		require.Contains(t, r.Message, refusedReplay)
	}
	require.Equal(t, int32(1), runs.Load())
}

func TestProgressCarriesTheWordToStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer  wire.ProgressResponse
		err     error
		message string
	}{
		"cancel":     {wire.ProgressResponse{Cancel: true}, nil, errCancelled.Error()},
		"lease lost": {wire.ProgressResponse{}, schema.NewError(schema.KindLeaseLost, "gone"), errLeaseLost.Error()},
		"not found":  {wire.ProgressResponse{}, schema.NewError(schema.KindNotFound, "gone"), errLeaseLost.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			var stop atomic.Bool
			f.progress = func(_ string, p task.Progress) (wire.ProgressResponse, error) {
				if p.LeaseEpoch != 1 || p.Message != "half way" || !stop.Load() {
					return wire.ProgressResponse{}, nil
				}
				return c.answer, c.err
			}
			started := make(chan string, 1)
			start(t, f.config(), Deps{Executors: script{
				task.WorkloadCordon: func(ctx context.Context, t Task) (any, error) {
					t.Note("half way")
					return held(started, nil)(ctx, t)
				},
			}.executors()})
			p := f.payload(task.WorkloadCordon, 1, nil)
			f.offers <- f.offerOf(p, 1)
			<-started
			f.until("three progress calls", func() bool { return f.counts["progress"] > 2 })
			stop.Store(true)
			r := f.result(p.TaskID)
			require.Equal(t, task.Canceled, r.Status)
			require.Equal(t, c.message, r.Message)
		})
	}
}

func TestExecutorFaults(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	x := script{
		task.WorkloadCordon:   func(context.Context, Task) (any, error) { panic("boom") },
		task.WorkloadUncordon: func(context.Context, Task) (any, error) { return nil, errors.New("cannot") },
		task.NodeProbe:        func(context.Context, Task) (any, error) { return nil, schema.NewError(schema.KindUnfit, "unfit") },
		task.FactsCollect:     func(context.Context, Task) (any, error) { return strings.Repeat("x", wire.MaxResultBytes), nil },
		task.WorkloadDrain:    held(make(chan string, 1), nil),
	}.executors()
	slow := x[task.WorkloadDrain]
	slow.Limit = func(task.Payload, time.Time) time.Duration { return time.Millisecond }
	x[task.WorkloadDrain] = slow
	start(t, f.config(), Deps{Executors: x})
	for i, c := range []struct {
		typ     task.Type
		code    schema.Kind
		message string
	}{
		{task.WorkloadCordon, schema.KindInternal, "panicked"},
		{task.WorkloadUncordon, schema.KindTaskFailed, "cannot"},
		{task.NodeProbe, schema.KindUnfit, "unfit"},
		{task.FactsCollect, schema.KindTaskFailed, "larger than"},
		{task.WorkloadDrain, schema.KindTaskFailed, errTimeLimit.Error()},
	} {
		p := f.payload(c.typ, int64(i+1), nil)
		f.offers <- f.offerOf(p, 1)
		r := f.result(p.TaskID)
		require.Equal(t, task.Failed, r.Status)
		require.Equal(t, c.code, r.Code)
		require.Contains(t, r.Message, c.message)
		require.Empty(t, r.Output)
	}
}

func TestChangesOneAtATimeReadsAlongside(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	changes, reads := make(chan string, 8), make(chan string, 8)
	release := make(chan struct{})
	start(t, f.config(), Deps{Executors: script{
		task.WorkloadCordon:   held(changes, release),
		task.WorkloadUncordon: held(changes, release),
		task.FactsCollect:     held(reads, release),
	}.executors()})
	first, second := f.payload(task.WorkloadCordon, 1, nil), f.payload(task.WorkloadUncordon, 2, nil)
	r1, r2 := f.payload(task.FactsCollect, 3, nil), f.payload(task.FactsCollect, 4, nil)
	for _, p := range []task.Payload{first, second, r1, r2} {
		f.offers <- f.offerOf(p, 1)
	}
	require.Equal(t, first.TaskID, <-changes)
	require.ElementsMatch(t, []string{r1.TaskID, r2.TaskID}, []string{<-reads, <-reads})
	f.until("all four in have", func() bool { return strings.Count(f.haves[len(f.haves)-1], ",") == 3 })
	require.Empty(t, changes)
	release <- struct{}{} // of whichever; each release ends one
	release <- struct{}{}
	release <- struct{}{}
	require.Equal(t, second.TaskID, <-changes)
	close(release)
	for _, p := range []task.Payload{first, second, r1, r2} {
		require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	}
}

func TestResultIsPostedUntilTheServerHasIt(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.onResult = func(n int, _ string, _ task.Result) error {
		if n <= 3 {
			return schema.NewError(schema.KindServiceUnavailable, "database away")
		}
		return nil
	}
	f.lose = func(what string, n int) bool { return what == "result" && n <= 6 }
	var runs atomic.Int32
	a := start(t, f.config(), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	f.until("seven posts", func() bool { return f.counts["result"] == 7 })
	eventually(t, "the report in the journal", func() bool { return len(a.tasks.journal.have()) == 0 })
	require.Equal(t, 7, f.count("result"))
	require.Equal(t, int32(1), runs.Load())
}

func TestResultNobodyWants(t *testing.T) {
	t.Parallel()
	for _, kind := range []schema.Kind{schema.KindLeaseLost, schema.KindNotFound, schema.KindInvalidRequest} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			f.onResult = func(n int, _ string, _ task.Result) error {
				if n == 1 {
					return schema.NewError(kind, "not wanted")
				}
				return nil
			}
			var runs atomic.Int32
			a := start(t, f.config(), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
			p := f.payload(task.WorkloadCordon, 1, nil)
			f.offers <- f.offerOf(p, 1)
			f.until("a post", func() bool { return f.counts["result"] > 0 })
			eventually(t, "the end of reporting", func() bool { return len(a.tasks.journal.have()) == 0 })
			require.Contains(t, a.log.String(), `"code":"`+string(kind)+`"`)

			f.offers <- f.offerOf(p, 2)
			require.Equal(t, int64(2), f.result(p.TaskID).LeaseEpoch)
			require.Equal(t, int32(1), runs.Load())
		})
	}
}

// TestStrangers404IsNoAnswer: only the API's own envelope says that a task is
// not known; a proxy on the way says nothing about it.
func TestStrangers404IsNoAnswer(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	var proxy atomic.Int32
	inner := f.srv.Config.Handler
	f.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/result") && proxy.Add(1) <= 3 {
			http.NotFound(w, r)
			return
		}
		inner.ServeHTTP(w, r)
	})
	a := start(t, f.config(), Deps{})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	require.Contains(t, a.log.String(), "may not route to the node API")
}

// TestFullDisk: without a durable journal nothing is executed; a result that
// cannot be journalled is still reported.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	var full atomic.Bool
	var runs atomic.Int32
	a, log := newAgent(t, f.config(), Deps{Executors: script{
		task.WorkloadCordon: func(context.Context, Task) (any, error) { full.Store(true); return runs.Add(1), nil },
	}.executors()})
	a.tasks.journal.state.disk.create = func(path string, mode os.FileMode) (outFile, error) {
		if full.Load() {
			return nil, syscall.ENOSPC
		}
		return disk{}.open(path, mode)
	}
	full.Store(true)
	launch(t, a, log)
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	eventually(t, "a line about the journal", func() bool { return strings.Contains(log.String(), "journal: ") })
	require.Zero(t, runs.Load())
	require.Zero(t, f.count("result"))
	full.Store(false)
	f.offers <- f.offerOf(p, 2)
	require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	eventually(t, "the end of reporting", func() bool { return len(a.tasks.journal.have()) == 0 })
	require.Equal(t, int32(1), runs.Load())
	require.Contains(t, log.String(), "task result not journalled")
}

// seed writes what a killed agent left in its journal.
func seed(t *testing.T, f *fakeAPI, c Config, p task.Payload, change func(*entry)) entry {
	t.Helper()
	v, err := f.verifier().check(f.envelope(p), time.Now())
	require.NoError(t, err)
	e := entry{
		TaskID: p.TaskID, Digest: v.digest, Payload: v.raw, Seq: p.Seq, LeaseEpoch: 4,
		AcceptedAt: time.Now().UTC(), ExpiresAt: p.ExpiresAt, Step: stepAccepted,
	}
	if change != nil {
		change(&e)
	}
	s := stateDir{path: c.StateDir}
	require.NoError(t, s.ensure())
	require.NoError(t, s.writeJSON(s.file("journal", p.TaskID+".json"), e))
	return e
}

// TestRestartRules starts an agent over what a killed one left at each step.
func TestRestartRules(t *testing.T) {
	t.Parallel()
	finished := func(e *entry) {
		_ = e.finish(task.Result{Status: task.Succeeded, Output: json.RawMessage(`"recorded"`)})
	}
	for name, c := range map[string]struct {
		typ       task.Type
		resumable bool
		seed      func(*entry)
		runs      int32
		status    task.Status
		output    string
		message   string
	}{
		"read, accepted":                    {task.FactsCollect, false, nil, 1, task.Succeeded, `1`, ""},
		"idempotent, accepted":              {task.WorkloadCordon, false, nil, 1, task.Succeeded, `1`, ""},
		"destructive, accepted, resumable":  {task.WorkloadDrain, true, nil, 1, task.Succeeded, `1`, ""},
		"destructive, accepted":             {task.WorkloadDrain, false, nil, 0, task.Failed, "", "outcome unknown"},
		"read, finished":                    {task.FactsCollect, false, finished, 0, task.Succeeded, `"recorded"`, ""},
		"idempotent, finished":              {task.WorkloadCordon, false, finished, 0, task.Succeeded, `"recorded"`, ""},
		"destructive, finished":             {task.WorkloadDrain, false, finished, 0, task.Succeeded, `"recorded"`, ""},
		"destructive, resumable, finished ": {task.WorkloadDrain, true, finished, 0, task.Succeeded, `"recorded"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			cfg := f.config()
			var runs atomic.Int32
			x := script{c.typ: counting(&runs)}.executors()
			one := x[c.typ]
			one.Resumable = c.resumable
			x[c.typ] = one
			p := f.payload(c.typ, 1, nil)
			seed(t, f, cfg, p, c.seed)
			a := start(t, cfg, Deps{Executors: x})
			r := f.result(p.TaskID)
			require.Equal(t, c.runs, runs.Load())
			require.Equal(t, c.status, r.Status)
			require.Equal(t, c.output, string(r.Output))
			require.Contains(t, r.Message, c.message)
			require.Equal(t, int64(4), r.LeaseEpoch)
			eventually(t, "the report in the journal", func() bool { return len(a.tasks.journal.have()) == 0 })
			a.halt()

			f.note(func() { f.results, f.counts = nil, map[string]int{} })
			b := start(t, cfg, Deps{Executors: x})
			f.polls()
			b.halt()
			require.Zero(t, f.count("result"), "a reported result is reported again")
			require.Equal(t, c.runs, runs.Load())
		})
	}
}

// TestResumedTaskIsConfirmedFirst: an operation that ended while the agent was
// away must not touch the node any more.
func TestResumedTaskIsConfirmedFirst(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	calls := 0
	f.progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		if calls++; calls < 3 {
			return wire.ProgressResponse{}, schema.NewError(schema.KindServiceUnavailable, "away")
		}
		return wire.ProgressResponse{}, schema.NewError(schema.KindLeaseLost, "voided")
	}
	f.onResult = func(int, string, task.Result) error { return schema.NewError(schema.KindLeaseLost, "voided") }
	var runs atomic.Int32
	p := f.payload(task.WorkloadCordon, 1, nil)
	seed(t, f, c, p, nil)
	a, log := newAgent(t, c, Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	a.tasks.timing.progress = time.Hour
	launch(t, a, log)
	eventually(t, "the end of the task", func() bool { return len(a.tasks.journal.have()) == 0 })
	require.Zero(t, runs.Load())
	e, _ := a.tasks.journal.get(p.TaskID)
	require.Equal(t, task.Canceled, e.Result.Status)
}

func TestStoppedAgentLeavesItsTaskForTheNext(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	started := make(chan string, 1)
	a := start(t, c, Deps{Executors: script{task.WorkloadCordon: held(started, nil)}.executors()})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	<-started
	a.halt()
	require.NoError(t, a.err)
	require.Zero(t, f.count("result"))

	var runs atomic.Int32
	start(t, c, Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	require.Equal(t, int32(1), runs.Load())
}

func TestBrokenJournalFilesArePutAside(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	p := f.payload(task.WorkloadCordon, 1, nil)
	s := stateDir{path: c.StateDir}
	require.NoError(t, s.ensure())
	torn := s.file("journal", schema.NewID()+".json")
	require.NoError(t, os.WriteFile(torn, []byte(`{"task_id`), privateFile))
	misnamed := s.file("journal", schema.NewID()+".json")
	require.NoError(t, s.writeJSON(misnamed, entry{TaskID: schema.NewID()}))
	seed(t, f, c, p, nil)
	a := start(t, c, Deps{})
	require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	require.FileExists(t, torn+".bad")
	require.FileExists(t, misnamed+".bad")
	require.Equal(t, 2, strings.Count(a.log.String(), "journal entry put aside"))
}
