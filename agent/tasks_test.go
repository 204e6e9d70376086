package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// script is a list of executors whose work a test defines.
type script map[task.Type]func(ctx context.Context, t runner.Task) (any, error)

func (s script) executors() map[task.Type]runner.Executor {
	x := map[task.Type]runner.Executor{}
	for typ, run := range s {
		x[typ] = runner.Executor{Check: func(json.RawMessage) error { return nil }, Run: run}
	}
	return x
}

// counting is an executor that counts its runs.
func counting(n *atomic.Int32) func(context.Context, runner.Task) (any, error) {
	return func(context.Context, runner.Task) (any, error) { return n.Add(1), nil }
}

// held blocks until its context or the release channel ends it.
func held(started chan<- string, release <-chan struct{}) func(context.Context, runner.Task) (any, error) {
	return func(ctx context.Context, t runner.Task) (any, error) {
		started <- t.TaskID
		select {
		case <-release:
			return "done", nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func TestOfferFinishedTask(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	var runs atomic.Int32
	start(t, configFor(f), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	for epoch := int64(1); epoch <= 3; epoch++ {
		f.Offers <- f.OfferOf(p, epoch)
		f.Until("the result of the epoch", func() bool {
			n := len(f.Results)
			return n > 0 && f.Results[n-1].LeaseEpoch == epoch
		})
	}
	require.Equal(t, int32(1), runs.Load())
	first := f.Results[0].Result
	for _, r := range f.Results {
		r.LeaseEpoch = first.LeaseEpoch
		require.Equal(t, first, r.Result)
	}
}

func TestOfferRunningTaskWithNewLease(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	started, release := make(chan string, 1), make(chan struct{})
	a := start(t, configFor(f), Deps{Executors: script{task.WorkloadCordon: held(started, release)}.executors()})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	<-started
	f.Until("the task in have", func() bool { return f.Haves[len(f.Haves)-1] == p.TaskID })
	f.Offers <- f.OfferOf(p, 2)

	forged := f.OfferOf(p, 9)
	forged.Envelope = json.RawMessage(strings.Replace(string(forged.Envelope), `"sig":"`, `"sig":"AAAA`, 1))
	f.Offers <- forged
	other := p
	other.Params = json.RawMessage(`{}`)
	f.Offers <- f.OfferOf(other, 9)
	eventually(t, "both refusals in the log", func() bool { return strings.Count(a.log.String(), `"task refused"`) == 2 })
	require.Contains(t, a.log.String(), "other_payload")
	close(release)
	r := f.Result(p.TaskID)
	require.Equal(t, task.Succeeded, r.Status)
	require.Equal(t, int64(2), r.LeaseEpoch)
	require.Empty(t, started)
}

// TestOfferDuringReport: the new lease arrives between the post
// and its answer; the server gets the result under that lease too.
func TestOfferDuringReport(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	a, log := newAgent(t, configFor(f), Deps{Executors: script{task.WorkloadCordon: counting(new(atomic.Int32))}.executors()})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.OnResult = func(n int, _ string, _ task.Result) error {
		if n == 1 {
			f.Offers <- f.OfferOf(p, 2)
			eventually(t, "the second offer", func() bool { return strings.Contains(log.String(), "task offered again") })
		}
		return nil
	}
	launch(t, a, log)
	f.Offers <- f.OfferOf(p, 1)
	f.Until("the result under the second lease", func() bool {
		return len(f.Results) > 0 && f.Results[len(f.Results)-1].LeaseEpoch == 2
	})
	eventually(t, "the report in the journal", func() bool { return len(a.journal.Held()) == 0 })
}

func TestSequenceFloorAfterPrune(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	var runs atomic.Int32
	o := Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()}
	a := start(t, c, o)
	p := f.Payload(task.WorkloadCordon, 5, nil)
	f.Offers <- f.OfferOf(p, 1)
	f.Result(p.TaskID)
	eventually(t, "the report in the journal", func() bool { return len(a.journal.Held()) == 0 })
	require.NoError(t, a.journal.Prune(p.ExpiresAt.Add(10*time.Minute+time.Second)))
	require.NoFileExists(t, journalFile(a.conf, p))
	a.halt()
	f.Deserted()

	start(t, c, o)
	replay := f.Payload(task.WorkloadCordon, 4, nil)
	for _, p := range []task.Payload{p, replay} {
		f.Note(func() { f.Results = nil })
		f.Offers <- f.OfferOf(p, 2)
		r := f.Result(p.TaskID)
		require.Equal(t, schema.KindTaskRefused, r.Code)
		require.Contains(t, r.Message, "replayed_seq")
	}
	require.Equal(t, int32(1), runs.Load())
}

func TestCancelOnProgress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer  wire.ProgressResponse
		err     error
		message string
	}{
		"cancel":     {wire.ProgressResponse{Cancel: true}, nil, "canceled by the control plane"},
		"lease lost": {wire.ProgressResponse{}, schema.NewError(schema.KindLeaseLost, "gone"), "the lease was lost"},
		"not found":  {wire.ProgressResponse{}, schema.NewError(schema.KindNotFound, "gone"), "the lease was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			var stop atomic.Bool
			f.Progress = func(_ string, p task.Progress) (wire.ProgressResponse, error) {
				if p.LeaseEpoch != 1 || p.Message != "half way" || !stop.Load() {
					return wire.ProgressResponse{}, nil
				}
				return c.answer, c.err
			}
			started := make(chan string, 1)
			start(t, configFor(f), Deps{Executors: script{
				task.WorkloadCordon: func(ctx context.Context, t runner.Task) (any, error) {
					t.Note("half way")
					return held(started, nil)(ctx, t)
				},
			}.executors()})
			p := f.Payload(task.WorkloadCordon, 1, nil)
			f.Offers <- f.OfferOf(p, 1)
			<-started
			f.Until("three progress calls", func() bool { return f.Counts["progress"] > 2 })
			stop.Store(true)
			r := f.Result(p.TaskID)
			require.Equal(t, task.Canceled, r.Status)
			require.Equal(t, c.message, r.Message)
		})
	}
}

func TestExecutorFaults(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	x := script{
		task.WorkloadCordon:   func(context.Context, runner.Task) (any, error) { panic("boom") },
		task.WorkloadUncordon: func(context.Context, runner.Task) (any, error) { return nil, errors.New("cannot") },
		task.NodeProbe: func(context.Context, runner.Task) (any, error) {
			return nil, schema.NewError(schema.KindUnfit, "unfit")
		},
		task.FactsCollect:  func(context.Context, runner.Task) (any, error) { return strings.Repeat("x", wire.MaxResultBytes), nil },
		task.WorkloadDrain: held(make(chan string, 1), nil),
	}.executors()
	slow := x[task.WorkloadDrain]
	slow.Limit = func(task.Payload, time.Time) time.Duration { return time.Millisecond }
	x[task.WorkloadDrain] = slow
	start(t, configFor(f), Deps{Executors: x})
	for i, c := range []struct {
		typ     task.Type
		code    schema.Kind
		message string
	}{
		{task.WorkloadCordon, schema.KindInternal, "panicked"},
		{task.WorkloadUncordon, schema.KindTaskFailed, "cannot"},
		{task.NodeProbe, schema.KindUnfit, "unfit"},
		{task.FactsCollect, schema.KindTaskFailed, "larger than"},
		{task.WorkloadDrain, schema.KindTaskFailed, "the time limit was reached"},
	} {
		p := f.Payload(c.typ, int64(i+1), nil)
		f.Offers <- f.OfferOf(p, 1)
		r := f.Result(p.TaskID)
		require.Equal(t, task.Failed, r.Status)
		require.Equal(t, c.code, r.Code)
		require.Contains(t, r.Message, c.message)
		require.Empty(t, r.Output)
	}
}

func TestOneChangeAtATime(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	changes, reads := make(chan string, 8), make(chan string, 8)
	release := make(chan struct{})
	start(t, configFor(f), Deps{Executors: script{
		task.WorkloadCordon:   held(changes, release),
		task.WorkloadUncordon: held(changes, release),
		task.FactsCollect:     held(reads, release),
	}.executors()})
	first, second := f.Payload(task.WorkloadCordon, 1, nil), f.Payload(task.WorkloadUncordon, 2, nil)
	r1, r2 := f.Payload(task.FactsCollect, 3, nil), f.Payload(task.FactsCollect, 4, nil)
	for _, p := range []task.Payload{first, second, r1, r2} {
		f.Offers <- f.OfferOf(p, 1)
	}
	require.Equal(t, first.TaskID, <-changes)
	require.ElementsMatch(t, []string{r1.TaskID, r2.TaskID}, []string{<-reads, <-reads})
	f.Until("all four in have", func() bool { return strings.Count(f.Haves[len(f.Haves)-1], ",") == 3 })
	require.Empty(t, changes)
	release <- struct{}{} // of whichever; each release ends one
	release <- struct{}{}
	release <- struct{}{}
	require.Equal(t, second.TaskID, <-changes)
	close(release)
	for _, p := range []task.Payload{first, second, r1, r2} {
		require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	}
}

func TestRetryResult(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.OnResult = func(n int, _ string, _ task.Result) error {
		if n <= 3 {
			return schema.NewError(schema.KindServiceUnavailable, "database away")
		}
		return nil
	}
	f.Lose = func(what string, n int) bool { return what == "result" && n <= 6 }
	var runs atomic.Int32
	a := start(t, configFor(f), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	f.Until("seven posts", func() bool { return f.Counts["result"] == 7 })
	eventually(t, "the report in the journal", func() bool { return len(a.journal.Held()) == 0 })
	require.Equal(t, 7, f.Count("result"))
	require.Equal(t, int32(1), runs.Load())
}

func TestDropRejectedResult(t *testing.T) {
	t.Parallel()
	for _, kind := range []schema.Kind{schema.KindLeaseLost, schema.KindNotFound, schema.KindInvalidRequest} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			f.OnResult = func(n int, _ string, _ task.Result) error {
				if n == 1 {
					return schema.NewError(kind, "not wanted")
				}
				return nil
			}
			var runs atomic.Int32
			a := start(t, configFor(f), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
			p := f.Payload(task.WorkloadCordon, 1, nil)
			f.Offers <- f.OfferOf(p, 1)
			f.Until("a post", func() bool { return f.Counts["result"] > 0 })
			eventually(t, "the end of reporting", func() bool { return len(a.journal.Held()) == 0 })
			require.Contains(t, a.log.String(), `"code":"`+string(kind)+`"`)

			f.Offers <- f.OfferOf(p, 2)
			require.Equal(t, int64(2), f.Result(p.TaskID).LeaseEpoch)
			require.Equal(t, int32(1), runs.Load())
		})
	}
}

// TestForeign404: only the API's own envelope means that a task is
// unknown; a proxy's 404 does not.
func TestForeign404(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	var proxy atomic.Int32
	inner := f.Srv.Config.Handler
	f.Srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/result") && proxy.Add(1) <= 3 {
			http.NotFound(w, r)
			return
		}
		inner.ServeHTTP(w, r)
	})
	a := start(t, configFor(f), Deps{})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.Contains(t, a.log.String(), "may not route to the node API")
}

// TestFullDisk: without a durable journal nothing is executed, and the agent reports that
// it accepts no tasks until the journal can be written; a result that cannot be journaled
// is still reported.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	var full atomic.Bool
	var runs atomic.Int32
	a, log := newAgent(t, configFor(f), Deps{FS: hookDisk{create: func(path string) (disk.File, error) {
		if full.Load() && (strings.Contains(path, "/journal/") || strings.Contains(path, "seq-floor")) {
			return nil, syscall.ENOSPC
		}
		return disk.OS{}.Create(path)
	}}, Executors: script{
		task.WorkloadCordon: func(context.Context, runner.Task) (any, error) { full.Store(true); return runs.Add(1), nil },
	}.executors()})
	full.Store(true)
	launch(t, a, log)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	eventually(t, "a line about the journal", func() bool { return strings.Contains(log.String(), "journal: ") })
	require.Zero(t, runs.Load())
	require.Zero(t, f.Count("result"))
	last := func() wire.Heartbeat { return f.Heartbeats[len(f.Heartbeats)-1] }
	f.Until("a heartbeat with the fault", func() bool { return strings.Contains(last().Fault, "no space left on device") })
	full.Store(false)
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	eventually(t, "the end of reporting", func() bool { return len(a.journal.Held()) == 0 })
	require.Equal(t, int32(1), runs.Load())
	require.Contains(t, log.String(), "task result not journaled")
}

// journalFile is where a task is in the journal.
func journalFile(c Config, p task.Payload) string {
	return filepath.Join(c.StateDir, "journal", fmt.Sprintf("%d-%s.json", p.Seq, p.TaskID))
}

// seed writes what a killed agent left in its journal.
func seed(t *testing.T, f *agenttest.API, c Config, p task.Payload, change func(*runner.Entry)) runner.Entry {
	t.Helper()
	body := f.Body(p)
	e := runner.Entry{
		TaskID: p.TaskID, Digest: schema.SHA256Hex(body), Payload: body, Seq: p.Seq, LeaseEpoch: 4,
		AcceptedAt: time.Now().UTC(), ExpiresAt: p.ExpiresAt, Step: "accepted",
	}
	if change != nil {
		change(&e)
	}
	s := disk.At(c.StateDir)
	require.NoError(t, s.Ensure("journal", "identity"))
	require.NoError(t, s.WriteJSON(journalFile(c, p), e))
	return e
}

// TestRestartRules starts an agent over what a killed one left at each step.
func TestRestartRules(t *testing.T) {
	t.Parallel()
	finished := func(e *runner.Entry) {
		e.Finish(task.Result{Status: task.Succeeded, Output: json.RawMessage(`"recorded"`)})
	}
	for name, c := range map[string]struct {
		typ       task.Type
		resumable bool
		seed      func(*runner.Entry)
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
			f := agenttest.New(t)
			cfg := configFor(f)
			var runs atomic.Int32
			x := script{c.typ: counting(&runs)}.executors()
			one := x[c.typ]
			one.Resumable = c.resumable
			x[c.typ] = one
			p := f.Payload(c.typ, 1, nil)
			seed(t, f, cfg, p, c.seed)
			a := start(t, cfg, Deps{Executors: x})
			r := f.Result(p.TaskID)
			require.Equal(t, c.runs, runs.Load())
			require.Equal(t, c.status, r.Status)
			require.Equal(t, c.output, string(r.Output))
			require.Contains(t, r.Message, c.message)
			require.Equal(t, int64(4), r.LeaseEpoch)
			eventually(t, "the report in the journal", func() bool { return len(a.journal.Held()) == 0 })
			a.halt()

			f.Note(func() { f.Results, f.Counts = nil, map[string]int{} })
			b := start(t, cfg, Deps{Executors: x})
			f.Polls()
			b.halt()
			require.Zero(t, f.Count("result"), "a reported result is reported again")
			require.Equal(t, c.runs, runs.Load())
		})
	}
}

// TestConfirmBeforeResume: after an operation ended while the agent was
// down, its task must not change the node.
func TestConfirmBeforeResume(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	calls := 0
	f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		if calls++; calls < 3 {
			return wire.ProgressResponse{}, schema.NewError(schema.KindServiceUnavailable, "away")
		}
		return wire.ProgressResponse{}, schema.NewError(schema.KindLeaseLost, "voided")
	}
	f.OnResult = func(int, string, task.Result) error { return schema.NewError(schema.KindLeaseLost, "voided") }
	var runs atomic.Int32
	p := f.Payload(task.WorkloadCordon, 1, nil)
	seed(t, f, c, p, nil)
	a, log := newAgent(t, c, Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors(), timing: slowProgress()})
	launch(t, a, log)
	eventually(t, "the end of the task", func() bool { return len(a.journal.Held()) == 0 })
	require.Zero(t, runs.Load())
	var e runner.Entry
	_, err := disk.At("").ReadJSON(journalFile(a.conf, p), &e)
	require.NoError(t, err)
	require.Equal(t, task.Canceled, e.Result.Status)
}

func TestRestartResumesTask(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	started := make(chan string, 1)
	a := start(t, c, Deps{Executors: script{task.WorkloadCordon: held(started, nil)}.executors()})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	<-started
	a.halt()
	require.NoError(t, a.err)
	require.Zero(t, f.Count("result"))

	var runs atomic.Int32
	start(t, c, Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.Equal(t, int32(1), runs.Load())
}

func TestOpenJournalSetsBrokenFilesAside(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	s := disk.At(c.StateDir)
	require.NoError(t, s.Ensure("journal", "identity"))
	torn := s.File("journal", schema.NewID()+".json")
	require.NoError(t, os.WriteFile(torn, []byte(`{"task_id`), 0o600))
	misnamed := s.File("journal", schema.NewID()+".json")
	require.NoError(t, s.WriteJSON(misnamed, runner.Entry{TaskID: schema.NewID()}))
	seed(t, f, c, p, nil)
	a := start(t, c, Deps{})
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.FileExists(t, torn+".bad")
	require.FileExists(t, misnamed+".bad")
	require.Equal(t, 2, strings.Count(a.log.String(), "journal entry set aside"))
}

// TestDamagedEntryIsNotReplayed: after the journal entry of a drain is damaged, the
// server offers the drain again. The agent refuses it, even after another restart.
func TestDamagedEntryIsNotReplayed(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	var runs atomic.Int32
	p := f.Payload(task.WorkloadDrain, 7, nil)
	seed(t, f, c, p, nil)
	require.NoError(t, os.Truncate(journalFile(c, p), 20))
	for epoch := range 2 {
		f.Note(func() { f.Results = nil })
		a := start(t, c, Deps{Executors: script{task.WorkloadDrain: counting(&runs)}.executors()})
		f.Offers <- f.OfferOf(p, int64(5+epoch))
		r := f.Result(p.TaskID)
		require.Equal(t, schema.KindTaskRefused, r.Code)
		require.Contains(t, r.Message, "damaged_entry")
		a.halt()
		f.Deserted()
	}
	require.Zero(t, runs.Load())
}
