package adminapi

import (
	"context"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// tasks serves the node tasks.
type tasks struct{ base }

// list lists node tasks, newest first: those that have not ended, or all.
func (t tasks) list(c *call) (any, error) {
	q := t.listQuery(c)
	of := TaskQuery{Page: q.page(2), NodeID: q.node(), Types: words[task.Type](q, "type"), Since: q.since(), Open: !q.flag("all"),
		Statuses: words(q, "status", task.Pending, task.Dispatched, task.Running, task.Succeeded, task.Failed, task.Canceled, task.Lost)}
	of.Open = of.Open && len(of.Statuses) == 0
	return page(q, "tasks", of, t.Views.ListTasks)
}

// show returns one task with the end of its output.
func (t tasks) show(c *call) (any, error) {
	id, err := c.id("task_id")
	if err != nil {
		return nil, err
	}
	return t.Store.Task(c.Context(), id)
}

// decide carries out a decision and returns the task after it.
func (t tasks) decide(decide func(s Store, ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.Decode, func(d *wire.TaskDecision) error { return checkReason(d.Reason, true) })
		if err != nil {
			return nil, err
		}
		id, err := c.id("task_id")
		if err != nil {
			return nil, err
		}
		var after wire.TaskView
		err = t.once(c, func(u use) (result string, err error) {
			if u.result == "" {
				after, err = decide(t.Store, c.Context(), id, req.Reason, c.by)
			}
			// A repeat that the status rejects was carried out by the first use.
			if u.result != "" || u.repeated && schema.KindOf(err) == schema.KindTaskStatus {
				after, err = t.Store.Task(c.Context(), id)
			}
			return id, t.explain(c.Context(), id, err)
		})
		return after, err
	}
}

// explain adds the decisions that are allowed now to a rejection by the task's
// status. Other errors pass.
func (t tasks) explain(ctx context.Context, id string, err error) error {
	if schema.KindOf(err) != schema.KindTaskStatus {
		return err
	}
	v, lookup := t.Store.Task(ctx, id)
	if lookup != nil {
		return err // it is complete without the decisions
	}
	e, allowed := *schema.AsError(err), "cancel"
	switch {
	case v.Status == task.Lost:
		allowed = "resume, cancel"
		if e.Next == "" {
			e.Next = "gpuaas task resume " + id + " --reason '…'"
		}
	case v.Status.Terminal():
		allowed = "none, the task ended"
	}
	e.Message += "; allowed now: " + allowed
	return &e
}
