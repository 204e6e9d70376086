package runner

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// fakeAPI answers the progress calls of a test and keeps the results.
type fakeAPI struct {
	calls    int
	progress func(call int) (wire.ProgressResponse, error)
	results  []task.Result
}

func (f *fakeAPI) Progress(context.Context, string, task.Progress, string) (wire.ProgressResponse, error) {
	f.calls++
	return f.progress(f.calls)
}

func (f *fakeAPI) Result(_ context.Context, _ string, r task.Result, _ string) error {
	f.results = append(f.results, r)
	return nil
}

// TestConfirmRunningTask: the machine is suspended while a drain runs. Before its next
// effect, the drain asks the server again, and so it always does before a kill. After any
// answer but a positive one that is not old, the run is over.
func TestConfirmRunningTask(t *testing.T) {
	t.Parallel()
	const long = task.LeaseDuration
	wanted, canceled, lost := wire.ProgressResponse{}, wire.ProgressResponse{Cancel: true}, schema.NewError(schema.KindLeaseLost, "voided")
	for name, c := range map[string]struct {
		suspended time.Duration // before Confirm
		recent    time.Duration // given to Confirm
		answers   []any         // after the one that the task starts with; a duration is a suspension before a positive answer is read
		status    task.Status
		code      schema.Kind
	}{
		"confirmed recently":       {0, long, nil, task.Succeeded, ""},
		"always asked":             {0, 0, []any{wanted}, task.Succeeded, ""},
		"suspended":                {long, long, []any{wanted}, task.Succeeded, ""},
		"suspended, canceled":      {long, long, []any{canceled}, task.Canceled, ""},
		"suspended, lost":          {long, long, []any{lost}, task.Canceled, ""},
		"clock set back":           {-long, long, []any{wanted}, task.Succeeded, ""},
		"answer is old":            {0, 0, []any{long, wanted}, task.Succeeded, ""},
		"answer is old, canceled":  {0, 0, []any{long, canceled}, task.Canceled, ""},
		"every answer is old":      {0, 0, []any{long, long, long}, task.Failed, schema.KindTaskFailed},
		"unreachable, canceled":    {0, 0, []any{schema.NewError(schema.KindServiceUnavailable, "away"), canceled}, task.Canceled, ""},
		"canceled before the kill": {0, 0, []any{canceled}, task.Canceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var jumped time.Duration
				now := func() time.Time { return time.Now().Add(jumped) }
				api := &fakeAPI{progress: func(call int) (wire.ProgressResponse, error) {
					if call == 1 {
						return wanted, nil
					}
					switch a := c.answers[call-2].(type) {
					case error:
						return wire.ProgressResponse{}, a
					case wire.ProgressResponse:
						return a, nil
					case time.Duration:
						jumped += a
					}
					return wanted, nil
				}}
				var runErr, confirmErr error
				drain := Executor{Run: func(ctx context.Context, x Task) (any, error) {
					jumped += c.suspended
					confirmErr = x.Confirm(ctx, c.recent)
					runErr = ctx.Err()
					return struct{}{}, confirmErr
				}}
				j, e := journalOn(t, &hookDisk{})
				p := task.Payload{TaskID: e.TaskID, Type: task.WorkloadDrain, Effect: task.EffectDestructive, ExpiresAt: time.Now().Add(time.Hour)}
				e.Payload, _ = json.Marshal(p)
				r := New(Config{
					Journal: j, State: j.state, Executors: map[task.Type]Executor{task.WorkloadDrain: drain},
					Timing: Timing{Report: wait.Range{Min: time.Millisecond, Max: time.Millisecond}, Progress: time.Hour},
					API:    func() API { return api }, Local: now, Server: time.Now, Trusted: time.Now, Log: slog.New(slog.DiscardHandler),
				})
				r.hold(t.Context(), e, task.Lease{Epoch: 1}, false)
				r.Wait()
				require.Len(t, api.results, 1)
				require.Equal(t, c.status, api.results[0].Status, api.results[0].Message)
				require.Equal(t, c.code, api.results[0].Code)
				require.Equal(t, 1+len(c.answers), api.calls)
				require.Equal(t, c.status == task.Succeeded, confirmErr == nil)
				require.Equal(t, c.status == task.Succeeded, runErr == nil, "the run has ended")
			})
		})
	}
}
