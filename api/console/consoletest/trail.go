package consoletest

import (
	"context"
	"slices"
	"sync"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// Trail keeps records in memory. It implements console.Trail.
type Trail struct {
	mu    sync.Mutex
	err   error
	stops []Stop
}

// Stop is a bulk run that a subject stopped.
type Stop struct {
	console.BulkStop

	By audit.Subject
}

// BulkStopped implements console.Trail.
func (t *Trail) BulkStopped(ctx context.Context, s console.BulkStop, by audit.Subject) error {
	if err := ctx.Err(); err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the call was canceled")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.stops = append(t.stops, Stop{BulkStop: s, By: by})
	}
	return t.err
}

// Fail makes each further record fail with an error; nil for none.
func (t *Trail) Fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
}

// Stops returns the runs that were stopped, oldest first.
func (t *Trail) Stops() []Stop {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.stops)
}
