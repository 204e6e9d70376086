package adminapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// tasks lists node tasks, newest first: those that are not over, or all.
func (a *API) tasks(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	p := readParams(r.URL)
	q := TaskQuery{Page: p.page(2), Open: !p.flag("all"), Since: p.since(time.Now()),
		Statuses: closed(p, "status", []task.Status{task.Pending, task.Dispatched, task.Running, task.Succeeded, task.Failed, task.Canceled, task.Lost})}
	q.Open = q.Open && len(q.Statuses) == 0
	for _, t := range p.list("type") {
		q.Types = append(q.Types, task.Type(t))
	}
	node, fields := p.one("node"), p.fields()
	if err := p.check(); err != nil {
		return err
	}
	var err error
	if node != "" {
		if q.NodeID, err = a.nodeID(r, node); err != nil {
			return err
		}
	}
	tasks, next, err := a.cfg.Views.ListTasks(r.Context(), q)
	if err != nil {
		return err
	}
	return answerList(w, "tasks", tasks, next, fields)
}

// task shows one task with the end of what it printed.
func (a *API) task(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	taskID, err := taskOf(r)
	if err != nil {
		return err
	}
	task, err := a.cfg.Store.Task(r.Context(), taskID)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, task)
}

// decideTask carries out a decision and answers with the task after it.
func (a *API) decideTask(verb string) handler {
	return func(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
		var req wire.TaskDecision
		if err := edge.Decode(w, r, &req); err != nil {
			return err
		}
		if err := checkReason(req.Reason, true); err != nil {
			return err
		}
		taskID, err := taskOf(r)
		if err != nil {
			return err
		}
		return a.once(r, "tasks/"+taskID+"/"+verb, by, func(result string) error {
			var after wire.TaskView
			var err error
			switch {
			case result != "": // decided by the first use of the key
				after, err = a.cfg.Store.Task(r.Context(), taskID)
			case verb == "resume":
				after, err = a.cfg.Store.ResumeTask(r.Context(), taskID, req.Reason, by)
			default:
				after, err = a.cfg.Store.CancelTask(r.Context(), taskID, req.Reason, by)
			}
			if err != nil {
				return a.notNow(r.Context(), taskID, err)
			}
			return edge.JSON(w, http.StatusOK, after)
		})
	}
}

// notNow adds the decisions that the task's status allows to a refusal by that
// status. Other errors pass.
func (a *API) notNow(ctx context.Context, taskID string, err error) error {
	e, ok := errors.AsType[*schema.Error](err)
	if !ok || e.Kind != schema.KindTaskStatus {
		return err
	}
	nodeTask, lookup := a.cfg.Store.Task(ctx, taskID)
	if lookup != nil {
		return err // sufficient without
	}
	refusal := *e
	refusal.Message += "; allowed now: " + allowedFor(nodeTask)
	if refusal.Next == "" && nodeTask.Status == task.Lost {
		refusal.Next = "gpuaas task resume " + taskID + " --reason '…'"
	}
	return &refusal
}

// allowedFor lists the decisions that a task's status allows.
func allowedFor(t wire.TaskView) string {
	switch {
	case t.Status == task.Lost:
		return "resume, cancel"
	case t.Status.Terminal():
		return "none, the task ended"
	}
	return "cancel"
}

func taskOf(r *http.Request) (string, error) {
	id := r.PathValue("task_id")
	if !schema.IsID(id) {
		return "", schema.Errorf(schema.KindNotFound, "no such task")
	}
	edge.Annotate(r.Context(), slog.String("task_id", id))
	return id, nil
}
