package adminapi

import (
	"context"
	"slices"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// tasks serves the node tasks.
type tasks struct{ base }

// list lists node tasks, newest first: those that have not ended, or all.
func (t tasks) list(c *call) (any, error) {
	q := t.listQuery(c)
	var types []task.Type
	for _, info := range task.Types() {
		types = append(types, info.Type)
	}
	of := TaskQuery{Page: q.page(2), NodeID: q.node(), Types: words(q, "type", types...), Since: q.since(), Selector: q.selector(), Open: !q.flag("all"),
		Statuses: words(q, "status", task.Pending, task.Dispatched, task.Running, task.Succeeded, task.Failed, task.Canceled, task.Lost)}
	of.Orphaned = q.flag("orphaned")
	of.Open = of.Open && len(of.Statuses) == 0 && !of.Orphaned
	return page(q, "tasks", of, t.Tasks.ListTasks)
}

// show returns one task with the end of its output.
func (t tasks) show(c *call) (any, error) {
	id, err := c.id("task_id", listTasks)
	if err != nil {
		return nil, err
	}
	return t.Tasks.Task(c.Context(), id)
}

// listTasks lists the ids of tasks.
const listTasks = "gpuaas task list --all"

// taskDecision is a decision about a task. The statuses after are those of a task
// for which it was carried out.
type taskDecision struct {
	decide func(p Tasks, ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)
	after  []task.Status
}

// decide carries out a decision and returns the task after it. A request with an
// idempotency key may be a repeat: it succeeds if the task has such a status.
func (t tasks) decide(d taskDecision) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.Decode, func(d *wire.TaskDecision) error { return checkReason(d.Reason, true) })
		if err != nil {
			return nil, err
		}
		id, err := c.id("task_id", listTasks)
		if err != nil {
			return nil, err
		}
		v, err := d.decide(t.Tasks, c.Context(), id, req.Reason, c.by)
		if schema.KindOf(err) != schema.KindTaskStatus {
			return v, err
		}
		if v, lookup := t.Tasks.Task(c.Context(), id); lookup == nil {
			if c.key != "" && slices.Contains(d.after, v.Status) {
				return v, nil
			}
			err = explain(v, err)
		}
		return nil, err
	}
}

// explain adds the decisions that are allowed now to a rejection by the task's
// status.
func explain(v wire.TaskView, err error) error {
	e, allowed := *schema.AsError(err), "cancel"
	switch {
	case v.Status == task.Lost:
		allowed = "resume, cancel"
		if e.Next == "" {
			e.Next = "gpuaas task resume " + v.TaskID + " --reason " + lifecycle.ReasonPlaceholder
		}
	case v.Status.Terminal():
		allowed = "none, the task ended"
	}
	e.Message += "; allowed now: " + allowed
	return &e
}
