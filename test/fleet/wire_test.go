package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// fakeAPI responds to requests in place of the node API.
type fakeAPI struct {
	answer func(r *http.Request, body string) (int, any)

	mu   sync.Mutex
	seen []string // "METHOD last/two at 61s", in their order
	from time.Time
}

func (e *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	e.mu.Lock()
	e.seen = append(e.seen, r.Method+" "+r.URL.Path+" at "+time.Since(e.from).Round(time.Second).String())
	e.mu.Unlock()
	status, v := e.answer(r, string(body))
	raw, err := json.Marshal(v)
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(raw))}, err
}

func (e *fakeAPI) got() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.seen...)
}

// newTestMember returns a member whose requests go to a fake API, without an agent.
func newTestMember(misbehavior Misbehavior, answer func(*http.Request, string) (int, any)) (*member, *meteredConn, *fakeAPI) {
	e := &fakeAPI{answer: answer, from: time.Now()}
	c := Config{RestartAfter: time.Minute, FlapEvery: time.Second, Log: slog.New(slog.DiscardHandler)}
	m := newMember(c, Config{}.folder("x").config(nodeRecord{NodeID: "n"}), misbehavior, &tally{})
	m.end = func(error) {}
	return m, &meteredConn{m, e}, e
}

func post(ctx context.Context, w *meteredConn, method, path string, body any) (int, string, error) {
	raw, _ := json.Marshal(body)
	r, _ := http.NewRequestWithContext(ctx, method, "https://api"+path, bytes.NewReader(raw))
	res, err := w.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

func offer(id string, until time.Time) wire.TaskOffer {
	return wire.TaskOffer{TaskID: id, Lease: task.Lease{Epoch: 1, ExpiresAt: until}}
}

func succeeded() task.Result { return task.Result{Status: task.Succeeded} }

func TestCountOffersAndResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusOK
		m, w, _ := newTestMember("", func(*http.Request, string) (int, any) {
			<-time.After(40 * time.Millisecond)
			return status, offer("t1", time.Now())
		})
		_, body, err := post(t.Context(), w, http.MethodPost, "/tasks/wait", wire.PollRequest{})
		require.NoError(t, err)
		require.Contains(t, body, `"task_id":"t1"`, "the agent reads what was looked at")
		for _, r := range []task.Status{task.Succeeded, task.Failed} {
			_, _, err = post(t.Context(), w, http.MethodPost, "/tasks/t1/result", task.Result{Status: r})
			require.NoError(t, err)
		}
		status = http.StatusConflict
		_, _, err = post(t.Context(), w, http.MethodPost, "/tasks/t1/result", succeeded())
		require.NoError(t, err)
		require.Contains(t, m.tally.line(1), "enrolled=1 running=0 polling=0 removed=0 offers=1 works=0 repeated=0 done=1 failed=1 late=1 twice=0 split=0 "+
			"result_p50=40ms result_p99=40ms")
	})
}

func TestSilentNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, w, e := newTestMember(Silent, func(*http.Request, string) (int, any) { return http.StatusOK, offer("t1", time.Now()) })
		var ended error
		m.end = func(cause error) { ended = cause }
		work := newTask(task.WorkloadCordon)
		_, _, err := post(t.Context(), w, http.MethodPost, "/tasks/t1/progress", task.Progress{})
		require.NoError(t, err, "the node is not silent before its work begins")
		_, err = testExecutor(m, task.WorkloadCordon)(t.Context(), work)
		require.NoError(t, err, "it does the work")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, path := range []string{"/tasks/t1/progress", "/tasks/t1/result", "/tasks/wait"} {
			_, _, err := post(ctx, w, http.MethodPost, path, succeeded())
			require.ErrorIs(t, err, context.DeadlineExceeded, path)
		}
		require.Len(t, e.got(), 1)
		<-time.After(2 * time.Minute)
		synctest.Wait()
		require.ErrorIs(t, ended, errSilenced, "and is restarted")

		m.muted.Store(false)
		_, err = testExecutor(m, task.WorkloadCordon)(t.Context(), work)
		require.NoError(t, err)
		status, _, err := post(t.Context(), w, http.MethodPost, "/tasks/t1/result", succeeded())
		require.NoError(t, err, "the same task does not silence it again")
		require.Equal(t, http.StatusOK, status)
	})
}

func TestDuplicateResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var bodies sync.Map
		answers := make(chan int, 2)
		answers <- http.StatusOK
		answers <- http.StatusConflict
		m, w, e := newTestMember(Duplicate, func(_ *http.Request, body string) (int, any) {
			bodies.Store(body, true)
			return <-answers, struct{}{}
		})
		_, _, err := post(t.Context(), w, http.MethodPost, "/tasks/t1/result", succeeded())
		require.NoError(t, err)
		require.Len(t, e.got(), 2)
		n := 0
		bodies.Range(func(any, any) bool { n++; return true })
		require.Equal(t, 1, n, "both are the same")
		require.EqualValues(t, 1, m.tally.twice.Load())
		require.EqualValues(t, 1, m.tally.split.Load(), "a server that answers them differently is seen")
	})
}

func TestLateReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, w, e := newTestMember(Late, func(r *http.Request, _ string) (int, any) {
			if path.Base(r.URL.Path) == "wait" {
				return http.StatusOK, offer("t1", begun.Add(time.Minute))
			}
			return http.StatusOK, wire.ProgressResponse{Lease: task.Lease{Epoch: 1, ExpiresAt: begun.Add(80 * time.Second)}}
		})
		_, _, err := post(t.Context(), w, http.MethodPost, "/tasks/wait", wire.PollRequest{})
		require.NoError(t, err)
		_, _, err = post(t.Context(), w, http.MethodPost, "/tasks/t1/progress", task.Progress{})
		require.NoError(t, err)
		tries := 0
		for err = context.DeadlineExceeded; err != nil; tries++ {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // as the agent does
			_, _, err = post(ctx, w, http.MethodPost, "/tasks/t1/result", succeeded())
			cancel()
		}
		require.Greater(t, time.Since(begun), 80*time.Second, "after the lease that the progress made longer")
		require.Less(t, time.Since(begun), 80*time.Second+task.StaleGrace+lifecycle.RoundInterval+time.Second)
		require.GreaterOrEqual(t, tries, 3)
		require.Len(t, e.got(), 3)
		sent := time.Now()
		_, _, err = post(t.Context(), w, http.MethodPost, "/tasks/t1/result", succeeded())
		require.NoError(t, err)
		require.Equal(t, sent, time.Now(), "a task is late once")
	})
}

func TestKillAffectsOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newTestMember(Dies, nil)
		var ended []error
		m.end = func(cause error) { ended = append(ended, cause) }
		m.endAfter(time.Second, errDied)
		m.mu.Lock()
		m.runs++ // that process ended, and another runs
		m.mu.Unlock()
		<-time.After(time.Minute)
		synctest.Wait()
		require.Empty(t, ended)
		require.False(t, m.muted.Load())

		m.endAfter(time.Second, errDied)
		<-time.After(time.Minute)
		synctest.Wait()
		require.Equal(t, []error{errDied}, ended)
		require.True(t, m.muted.Load(), "it sends no more requests")
	})
}
