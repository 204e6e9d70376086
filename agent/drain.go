package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Timings of a drain.
const (
	// drainGrace is what a drain may take after its deadline: to kill by force
	// and to see that it worked.
	drainGrace   = 30 * time.Second
	killWait     = 10 * time.Second
	drainPollMin = 50 * time.Millisecond
	drainPollMax = 2 * time.Second
)

// drain runs workload.drain: it asks every workload to end, waits until the
// deadline, and reports or kills what is left.
//
// It is resumable: which workloads it is ending is durable before the first one
// is asked, and the driver's own durable record keeps one from being asked
// twice.
type drain struct {
	workloads Workloads
	now       func() time.Time
}

func checkDrain(params json.RawMessage) error {
	_, err := drainParams(params)
	return err
}

func drainParams(params json.RawMessage) (schema.DrainParams, error) {
	var p schema.DrainParams
	if err := schema.DecodeStrict(params, schema.MaxBodyBytes, &p); err != nil {
		return p, err
	}
	if p.Deadline.IsZero() {
		return p, schema.NewError(schema.KindInvalidRequest, "deadline is missing")
	}
	return p, nil
}

// drainLimit gives a drain until its deadline and a little longer.
func drainLimit(p schema.TaskPayload, now time.Time) time.Duration {
	params, err := drainParams(p.Params)
	if err != nil {
		return drainGrace
	}
	return max(params.Deadline.Sub(now), 0) + drainGrace
}

func (d drain) run(ctx context.Context, t Task) (any, error) {
	params, err := drainParams(t.Params)
	if err != nil {
		return nil, err
	}
	var targets []string
	if _, err := t.Recall(&targets); err != nil {
		return nil, err
	}
	left, err := d.until(ctx, params.Deadline, func() ([]schema.Workload, error) {
		return d.ask(ctx, t, &targets)
	})
	if err != nil {
		return nil, err
	}
	if len(left) > 0 && params.Force {
		if left, err = d.kill(ctx, t, left); err != nil {
			return nil, err
		}
	}
	return d.result(targets, left, params), nil
}

// ask stops what runs and is not stopping yet, and returns what still runs.
func (d drain) ask(ctx context.Context, t Task, targets *[]string) ([]schema.Workload, error) {
	running, err := d.workloads.List(ctx)
	if err != nil {
		return nil, err
	}
	if added := missing(*targets, running); len(added) > 0 {
		*targets = append(*targets, added...)
		if err := t.Remember(*targets); err != nil {
			return nil, err
		}
	}
	for _, w := range running {
		if w.Stopping {
			continue
		}
		if err := d.workloads.Stop(ctx, w.Name); err != nil {
			return nil, fmt.Errorf("stopping %s %s: %w", w.Kind, w.Name, err)
		}
	}
	t.Note(fmt.Sprintf("%d of %d workloads still running", len(running), len(*targets)))
	return running, nil
}

// until calls look, less and less often, until nothing runs or the deadline
// has passed, and returns what runs then.
func (d drain) until(ctx context.Context, deadline time.Time, look func() ([]schema.Workload, error)) ([]schema.Workload, error) {
	for wait := drainPollMin; ; wait = min(2*wait, drainPollMax) {
		running, err := look()
		if err != nil || len(running) == 0 {
			return nil, err
		}
		left := deadline.Sub(d.now())
		if left <= 0 {
			return running, nil
		}
		if err := pause(ctx, min(wait, left)); err != nil {
			return nil, err
		}
	}
}

// kill ends by force what did not end by itself.
func (d drain) kill(ctx context.Context, t Task, left []schema.Workload) ([]schema.Workload, error) {
	t.Note(fmt.Sprintf("killing %d workloads by force", len(left)))
	for _, w := range left {
		if err := d.workloads.Kill(ctx, w.Name); err != nil {
			return nil, fmt.Errorf("killing %s %s: %w", w.Kind, w.Name, err)
		}
	}
	return d.until(ctx, d.now().Add(killWait), func() ([]schema.Workload, error) { return d.workloads.List(ctx) })
}

// result says what ended and what did not, and why.
func (d drain) result(targets []string, left []schema.Workload, p schema.DrainParams) schema.DrainResult {
	r := schema.DrainResult{Stopped: []string{}}
	for _, name := range targets {
		if !slices.ContainsFunc(left, func(w schema.Workload) bool { return w.Name == name }) {
			r.Stopped = append(r.Stopped, name)
		}
	}
	slices.Sort(r.Stopped)
	reason := fmt.Sprintf("was asked to stop and still ran at the deadline %s", stamp(p.Deadline))
	if p.Force {
		reason = fmt.Sprintf("was killed and still ran %s later", killWait)
	}
	for _, w := range left {
		r.Blocked = append(r.Blocked, schema.Blocker{Workload: w.Name, Reason: w.Kind + " " + reason})
	}
	return r
}

// missing returns the names of running that targets does not hold.
func missing(targets []string, running []schema.Workload) []string {
	var out []string
	for _, w := range running {
		if !slices.Contains(targets, w.Name) {
			out = append(out, w.Name)
		}
	}
	return out
}
