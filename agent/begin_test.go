package agent

import (
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
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestConfirmDestructiveTask: before its first effect, a destructive task is confirmed
// with the server. Unless the answer is positive, the task does not start, and the agent
// continues with other tasks. The agent does not compare the end of the lease with a
// clock: those of the API hosts and of the database may differ.
func TestConfirmDestructiveTask(t *testing.T) {
	t.Parallel()
	away := schema.NewError(schema.KindServiceUnavailable, "away")
	voided := schema.NewError(schema.KindLeaseLost, "voided")
	for name, c := range map[string]struct {
		answers []any // of the progress calls; the last one is repeated
		lease   time.Duration
		result  error // of the result's post
		status  task.Status
		message string
	}{
		"wanted":                 {answers: []any{wire.ProgressResponse{}}, status: task.Succeeded},
		"unreachable at first":   {answers: []any{away, away, wire.ProgressResponse{}}, status: task.Succeeded},
		"canceled":               {answers: []any{wire.ProgressResponse{Cancel: true}}, status: task.Canceled, message: "canceled by the control plane"},
		"unreachable, canceled":  {answers: []any{away, away, wire.ProgressResponse{Cancel: true}}, status: task.Canceled, message: "canceled by the control plane"},
		"paused, canceled":       {answers: []any{wire.ProgressResponse{Paused: true}, wire.ProgressResponse{Cancel: true}}, status: task.Canceled, message: "canceled by the control plane"},
		"paused, unpaused":       {answers: []any{wire.ProgressResponse{Paused: true}, wire.ProgressResponse{}}, status: task.Succeeded},
		"voided":                 {answers: []any{voided}, result: voided},
		"unreachable, voided":    {answers: []any{away, voided}, result: voided},
		"server's clock ahead":   {answers: []any{wire.ProgressResponse{}}, lease: -time.Minute, status: task.Succeeded},
		"canceled, lease passed": {answers: []any{wire.ProgressResponse{Cancel: true}}, lease: -time.Minute, status: task.Canceled, message: "canceled by the control plane"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			var calls, runs atomic.Int32
			destructive, next := f.Payload(task.WorkloadDrain, 1, nil), f.Payload(task.WorkloadCordon, 2, nil)
			f.Progress = func(id string, _ task.Progress) (wire.ProgressResponse, error) {
				if id != destructive.TaskID {
					return wire.ProgressResponse{}, nil
				}
				switch a := c.answers[min(int(calls.Add(1)), len(c.answers))-1].(type) {
				case wire.ProgressResponse:
					a.Lease = task.Lease{Epoch: 1, ExpiresAt: time.Now().Add(time.Minute)}
					return a, nil
				case error:
					return wire.ProgressResponse{}, a
				}
				return wire.ProgressResponse{}, nil
			}
			f.OnResult = func(_ int, id string, _ task.Result) error {
				if id == destructive.TaskID {
					return c.result
				}
				return nil
			}
			a := start(t, configFor(f), Deps{Executors: script{
				task.WorkloadDrain: counting(&runs), task.WorkloadCordon: counting(new(atomic.Int32)),
			}.executors()})
			o := f.OfferOf(destructive, 1)
			if c.lease != 0 {
				o.Lease.ExpiresAt = time.Now().Add(c.lease)
			}
			f.Offers <- o
			if c.result == nil {
				r := f.Result(destructive.TaskID)
				require.Equal(t, c.status, r.Status, r.Message)
				require.Contains(t, r.Message, c.message)
			}
			eventually(t, "the end of the task", func() bool { return f.Count("progress") > 0 && len(a.journal.Held()) == 0 })
			require.Equal(t, c.status == task.Succeeded, runs.Load() == 1)
			f.Offers <- f.OfferOf(next, 1)
			require.Equal(t, task.Succeeded, f.Result(next.TaskID).Status)
		})
	}
}

// jumpClock is the system's clock and what it jumped, as the wall clock does while the
// machine is suspended.
type jumpClock struct {
	systemClock
	jumped atomic.Int64
}

func (c *jumpClock) Now() time.Time { return c.systemClock.Now().Add(time.Duration(c.jumped.Load())) }

// TestSuspendedAfterConfirmation: the machine is suspended after the server confirmed a
// drain and before the agent read that. The agent confirms it once more, a bounded number of
// times.
func TestSuspendedAfterConfirmation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		jumps   int32
		next    wire.ProgressResponse
		status  task.Status
		message string
	}{
		"still wanted":    {1, wire.ProgressResponse{}, task.Succeeded, ""},
		"canceled":        {1, wire.ProgressResponse{Cancel: true}, task.Canceled, "canceled by the control plane"},
		"again and again": {100, wire.ProgressResponse{}, task.Failed, "the server did not confirm the task"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			clock := &jumpClock{}
			var calls, runs atomic.Int32
			f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				if calls.Add(1) > c.jumps {
					return c.next, nil
				}
				clock.jumped.Add(int64(task.LeaseDuration))
				return wire.ProgressResponse{}, nil
			}
			start(t, configFor(f), Deps{Clock: clock, Executors: script{task.WorkloadDrain: counting(&runs)}.executors(), timing: slowProgress()})
			p := f.Payload(task.WorkloadDrain, 1, nil)
			f.Offers <- f.OfferOf(p, 1)
			r := f.Result(p.TaskID)
			require.Equal(t, c.status, r.Status, r.Message)
			require.Contains(t, r.Message, c.message)
			require.Equal(t, c.status == task.Succeeded, runs.Load() == 1)
			require.LessOrEqual(t, calls.Load(), int32(3))
		})
	}
}

// TestOfferedAgainBeforeItBegan: the lease of a drain is over before the server confirms
// it, and the server offers it again: while the agent still waits, or after the agent
// learned that the lease is lost, with a restart in between or none. It runs once.
func TestOfferedAgainBeforeItBegan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ waits, restart bool }{
		"while it waits": {waits: true}, "after the lease was lost": {}, "after a restart": {restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			conf := configFor(f)
			var runs atomic.Int32
			deps := Deps{Executors: script{task.WorkloadDrain: counting(&runs)}.executors(), timing: slowProgress()}
			offered := make(chan struct{})
			f.Progress = func(_ string, p task.Progress) (wire.ProgressResponse, error) {
				if p.LeaseEpoch == 2 {
					return wire.ProgressResponse{}, nil
				}
				select {
				case <-offered:
				default:
					if c.waits {
						return wire.ProgressResponse{}, schema.NewError(schema.KindServiceUnavailable, "away")
					}
				}
				return wire.ProgressResponse{}, schema.NewError(schema.KindLeaseLost, "over")
			}
			a := start(t, conf, deps)
			p := f.Payload(task.WorkloadDrain, 1, nil)
			f.Offers <- f.OfferOf(p, 1)
			f.Until("the question to the server", func() bool { return f.Counts["progress"] > 0 })
			if !c.waits {
				eventually(t, "the end of the wait", func() bool { return len(a.journal.Held()) == 0 })
			}
			if c.restart {
				a.halt()
				f.Deserted()
				start(t, conf, deps)
			}
			f.Offers <- f.OfferOf(p, 2)
			if c.waits {
				eventually(t, "the second lease", func() bool {
					return strings.Contains(a.log.String(), "task offered again")
				})
				close(offered)
			}
			r := f.Result(p.TaskID)
			require.Equal(t, task.Succeeded, r.Status, r.Message)
			require.Equal(t, int64(2), r.LeaseEpoch)
			require.Equal(t, int32(1), runs.Load())
			f.Note(func() { require.Len(t, f.Results, 1) })
		})
	}
}

// TestUnconfirmedTaskExpires: a destructive task that the server does not confirm until
// its envelope expires does not start.
func TestUnconfirmedTaskExpires(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		return wire.ProgressResponse{}, schema.NewError(schema.KindServiceUnavailable, "away")
	}
	var runs atomic.Int32
	start(t, configFor(f), Deps{Executors: script{task.WorkloadDrain: counting(&runs)}.executors()})
	f.Until("an open poll", func() bool { return f.Open == 1 })
	p := f.Payload(task.WorkloadDrain, 1, nil)
	p.ExpiresAt = time.Now().UTC().Add(10 * time.Second)
	f.Offers <- f.OfferOf(p, 1)
	r := f.Result(p.TaskID)
	require.Equal(t, schema.KindTaskFailed, r.Code)
	require.Contains(t, r.Message, "before it could start")
	require.Zero(t, runs.Load())
}

// TestOnlyDestructiveTasksAreConfirmed: other tasks do not need the extra request.
func TestOnlyDestructiveTasksAreConfirmed(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	x := script{task.FactsCollect: counting(new(atomic.Int32)), task.WorkloadCordon: counting(new(atomic.Int32))}
	start(t, configFor(f), Deps{Executors: x.executors(), timing: slowProgress()})
	for i, typ := range []task.Type{task.FactsCollect, task.WorkloadCordon} {
		p := f.Payload(typ, int64(i+1), nil)
		f.Offers <- f.OfferOf(p, 1)
		require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	}
	require.Zero(t, f.Count("progress"))
}

// TestSuspendedAgentReadsOldOffer: an agent process is suspended during a poll, the
// offer of a drain waits in its socket, and the operation is canceled. When the process
// continues, it stops no workload.
func TestSuspendedAgentReadsOldOffer(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	file := stubbornJob(t, c, "job")
	a := startProcess(t, c)
	eventually(t, "the workload", func() bool { return exists(file + ".up") })
	var canceled atomic.Bool
	f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		return wire.ProgressResponse{Cancel: canceled.Load()}, nil
	}
	f.Until("an open poll", func() bool { return f.Open == 1 })
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	p := f.Payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: time.Now().Add(time.Minute), Force: true})
	f.Offers <- f.OfferOf(p, 1)
	f.Until("the answer in the socket", func() bool { return f.Open == 0 })
	canceled.Store(true)
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, task.Canceled, f.Result(p.TaskID).Status)
	require.Zero(t, terms(file))
	require.NoError(t, os.WriteFile(file+".release", nil, 0o600))
}
