package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Timings of a drain.
const (
	// drainGrace is how long a drain may take after its deadline to kill workloads and
	// to confirm that they ended.
	drainGrace   = 30 * time.Second
	killWait     = 10 * time.Second
	drainPollMin = 50 * time.Millisecond
	drainPollMax = 2 * time.Second
)

// Drain runs workload.drain: it asks every workload to stop, waits until the deadline,
// and reports or kills the remaining workloads.
//
// It is resumable: the list of workloads to stop is durable before the first one is
// stopped, and the driver's own durable record prevents a second stop of the same
// workload. While it is paused, it stops and kills nothing. A pause does not extend the
// deadline.
//
// If the driver cannot list the workloads at the deadline, what runs is unknown, and the drain
// reports none as stopped.
//
// It waits for processes that use the GPUs after the last workload ended, and does not stop
// them. Those that remain block it, and so do workloads that are unknown, unless the drain
// is forced. While a task.KindLastServer is listed, a drain that is not forced stops nothing
// and ends at once.
type Drain struct {
	Workloads Driver
	// GPUs returns the GPU processes, as GPUs.Processes; nil on a node without GPUs.
	GPUs func(context.Context) []task.Workload
	Now  func() time.Time
}

// ends reports whether an entry of a list may disappear during a drain.
func ends(w task.Workload) bool { return w.Kind != task.KindUnknown && w.Kind != task.KindLastServer }

// ended reports whether a list has only entries that stay.
func ended(list []task.Workload) bool { return !slices.ContainsFunc(list, ends) }

// refuses reports whether an entry of a list forbids a drain that is not forced.
func refuses(w task.Workload) bool { return w.Kind == task.KindLastServer }

// CheckDrain refuses params that are not a drain's.
func CheckDrain(params json.RawMessage) error {
	_, err := drainParams(params)
	return err
}

func drainParams(params json.RawMessage) (task.DrainParams, error) {
	var p task.DrainParams
	if err := schema.DecodeStrict(params, wire.MaxBodyBytes, &p); err != nil {
		return p, err
	}
	if p.Deadline.IsZero() {
		return p, schema.NewError(schema.KindInvalidRequest, "deadline is missing")
	}
	return p, nil
}

// DrainLimit gives a drain until its deadline and a little longer.
func DrainLimit(p task.Payload, now time.Time) time.Duration {
	params, err := drainParams(p.Params)
	if err != nil {
		return drainGrace
	}
	return max(params.Deadline.Sub(now), 0) + drainGrace
}

// Run drains the node.
func (d Drain) Run(ctx context.Context, t execution.Task) (any, error) {
	params, err := drainParams(t.Params)
	if err != nil {
		return nil, err
	}
	r := draining{Drain: d, task: t, force: params.Force, deadline: params.Deadline, faults: map[string]string{}}
	if _, err := t.Recall(&r.targets); err != nil {
		return nil, err
	}
	out, err := r.run(ctx, params)
	if errors.Is(err, execution.ErrCanceled) || errors.Is(context.Cause(ctx), execution.ErrCanceled) {
		r.revert(ctx)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// until calls look, with backoff, until its list is done or the deadline has passed, and returns
// what runs then. It retries a failed call; after the deadline it returns the error.
func (d Drain) until(ctx context.Context, deadline time.Time,
	look func(context.Context) ([]task.Workload, error), done func([]task.Workload) bool,
) ([]task.Workload, error) {
	retry := wait.Backoff{Range: wait.Range{Min: drainPollMin, Max: drainPollMax}}
	for {
		running, err := look(ctx)
		left := deadline.Sub(d.Now())
		if err == nil && done(running) || left <= 0 {
			return running, err
		}
		if err := wait.Sleep(ctx, min(retry.Next(), left)); err != nil {
			return nil, err
		}
	}
}

// draining is one run of a drain.
type draining struct {
	Drain
	task     execution.Task
	force    bool
	deadline time.Time
	targets  []string          // every workload that this drain found; durable
	faults   map[string]string // why a workload could not be stopped, by name
	unlisted bool              // the driver did not list what runs in the end
	// finishing is set once the driver may have ended more than the workloads.
	finishing bool
}

// run ends the workloads, and what the driver ends after them.
func (r *draining) run(ctx context.Context, p task.DrainParams) (task.DrainResult, error) {
	left, err := r.until(ctx, p.Deadline, r.ask, func(list []task.Workload) bool { return r.refused(list) || ended(list) })
	if err == nil && r.refused(left) {
		return r.result(left, p), nil
	}
	if (err == nil || isUnlisted(err)) && len(left) > 0 && p.Force && !r.task.Paused() {
		left, err = r.kill(ctx, left)
	}
	if isUnlisted(err) && ctx.Err() == nil {
		r.unlisted = true
		left, err = append(left, task.Workload{Name: "unknown workloads: " + err.Error(), Kind: task.KindUnknown}), nil
	}
	if err != nil {
		return task.DrainResult{}, err
	}
	out := r.result(left, p)
	if len(out.Blocked) > 0 || r.unlisted || r.task.Paused() {
		return out, nil
	}
	if err := r.task.Confirm(ctx, task.LeaseDuration); err != nil {
		return task.DrainResult{}, err
	}
	r.finishing = true
	return out, finish(ctx, r.Workloads)
}

// refused reports whether the list forbids the drain.
func (r *draining) refused(list []task.Workload) bool {
	return !r.force && slices.ContainsFunc(list, refuses)
}

// revert lets the driver revert what this drain changed, after the control plane canceled
// it. An uncordon reverts it too, but a canceled drain leaves a cordon that it found.
func (r *draining) revert(ctx context.Context) {
	if r.finishing {
		restoreFor(ctx, r.task, r.Workloads)
	} else if len(r.targets) > 0 {
		restoreFor(ctx, r.task, r.Workloads, r.targets...)
	}
}

// unlistedError is the error of a driver that could not list its workloads.
type unlistedError struct{ error }

func (e *unlistedError) Unwrap() error { return e.error }

func isUnlisted(err error) bool {
	_, ok := errors.AsType[*unlistedError](err)
	return ok
}

// running lists the workloads of the driver, and once none is left the GPU processes, most
// of which belong to workloads.
func (r *draining) running(ctx context.Context) ([]task.Workload, error) {
	running, err := r.Workloads.List(ctx)
	if err != nil {
		return running, &unlistedError{err}
	}
	if r.GPUs != nil && !slices.ContainsFunc(running, task.Workload.Stoppable) {
		running = append(running, r.GPUs(ctx)...)
	}
	return running, nil
}

// ask stops the running workloads that are not stopping yet, and returns all that run. A drain that
// is forced stops those of a part of the drivers if the others cannot list theirs.
func (r *draining) ask(ctx context.Context) ([]task.Workload, error) {
	running, unlisted := r.running(ctx)
	if unlisted != nil {
		r.task.Note("cannot list the workloads: " + text.Truncate(unlisted.Error()))
	}
	if unlisted != nil && !r.force {
		return nil, unlisted
	}
	if r.refused(running) {
		r.task.Note("the drain is refused: " + running[slices.IndexFunc(running, refuses)].Name)
		return running, nil
	}
	all := slices.Clone(r.targets)
	for _, w := range running {
		if ends(w) && !slices.Contains(all, w.Name) {
			all = append(all, w.Name)
		}
	}
	if len(all) > len(r.targets) {
		if err := r.task.Remember(all); err != nil {
			return nil, err
		}
		r.targets = all
	}
	if r.task.Paused() {
		r.task.Note(fmt.Sprintf("paused: %d of %d workloads still running", len(running), len(all)))
		return running, unlisted
	}
	asked := 0
	for _, w := range running {
		if w.Stopping || !w.Stoppable() {
			continue
		}
		if asked++; asked > 1 && r.Now().After(r.deadline) {
			break // a slow driver must leave time to report what blocks
		}
		if err := r.task.Confirm(ctx, task.LeaseDuration); err != nil {
			return nil, err
		}
		if r.task.Paused() {
			break
		}
		delete(r.faults, w.Name)
		if err := r.Workloads.Stop(ctx, w.Name); err != nil {
			r.faults[w.Name] = text.Truncate(err.Error())
		}
	}
	r.task.Note(fmt.Sprintf("%d of %d workloads still running", len(running), len(all)))
	return running, unlisted
}

// kill kills the workloads that did not stop. The server confirms each kill, because the
// operation may have been canceled while the agent was suspended.
func (r *draining) kill(ctx context.Context, left []task.Workload) ([]task.Workload, error) {
	r.task.Note(fmt.Sprintf("killing %d workloads by force", len(left)))
	for _, w := range left {
		if !w.Stoppable() {
			continue
		}
		if err := r.task.Confirm(ctx, 0); err != nil {
			return nil, err
		}
		if r.task.Paused() {
			break
		}
		if err := r.Workloads.Kill(ctx, w.Name); err != nil {
			r.faults[w.Name] = text.Truncate(err.Error())
		}
	}
	left, err := r.until(ctx, r.Now().Add(killWait), func(ctx context.Context) ([]task.Workload, error) {
		list, err := r.Workloads.List(ctx)
		if err != nil {
			err = &unlistedError{err}
		}
		return slices.DeleteFunc(list, func(w task.Workload) bool { return !w.Stoppable() }), err
	}, ended)
	if err != nil || len(left) > 0 {
		return left, err
	}
	return r.running(ctx)
}

// result lists the stopped workloads, and the others with the reason.
func (r *draining) result(left []task.Workload, p task.DrainParams) task.DrainResult {
	out := task.DrainResult{Stopped: []string{}}
	for _, name := range r.targets {
		if !r.unlisted && !slices.ContainsFunc(left, func(w task.Workload) bool { return w.Name == name }) {
			out.Stopped = append(out.Stopped, name)
		}
	}
	slices.Sort(out.Stopped)
	refused := r.refused(left)
	for _, w := range left {
		if refused && !refuses(w) {
			continue // it was not asked to stop
		}
		b := task.Blocker{Workload: w.Name, Kind: w.Kind, Reason: r.reason(w, p)}
		if p.Force && !w.Stoppable() {
			out.Ignored = append(out.Ignored, b)
		} else {
			out.Blocked = append(out.Blocked, b)
		}
	}
	return out
}

func (r *draining) reason(w task.Workload, p task.DrainParams) string {
	switch fault := r.faults[w.Name]; {
	case w.Kind == task.KindUnknown:
		return "what runs on the node is unknown"
	case refuses(w):
		return cmp.Or(w.Warning, "a drain is refused")
	case w.Kind == task.KindGPUProcess:
		return "no workload driver stops it, and it still used a GPU at the deadline " + text.FormatTime(p.Deadline)
	case fault != "":
		return w.Kind + " could not be stopped: " + fault
	case r.task.Paused():
		return fmt.Sprintf("%s still ran at the deadline %s, when the drain was paused", w.Kind, text.FormatTime(p.Deadline))
	case p.Force:
		return fmt.Sprintf("%s was killed and still ran %s later", w.Kind, killWait)
	}
	return fmt.Sprintf("%s was asked to stop and still ran at the deadline %s", w.Kind, text.FormatTime(p.Deadline))
}
