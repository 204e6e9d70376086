package adminapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// tasks lists node tasks, newest first: those that are not over, or all.
func (a *API) tasks(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	q := r.URL.Query()
	all := false
	if text := q.Get("all"); text != "" {
		var err error
		if all, err = strconv.ParseBool(text); err != nil {
			return badField("all", "must be true or false")
		}
	}
	nodeID := ""
	if q.Get("node") != "" {
		var err error
		if nodeID, err = a.nodeID(r, q.Get("node")); err != nil {
			return err
		}
	}
	tasks, err := a.cfg.Store.TaskList(r.Context(), nodeID, !all)
	if err != nil {
		return err
	}
	if tasks == nil {
		tasks = []wire.TaskView{}
	}
	return edge.JSON(w, http.StatusOK, wire.TaskList{Tasks: tasks})
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

// decision is what an operator does about a task.
type decision func(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)

// decideTask carries out a decision and answers with the task after it.
func (a *API) decideTask(decide decision) handler {
	return func(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
		var req wire.TaskDecision
		if err := edge.Decode(w, r, &req); err != nil {
			return err
		}
		if strings.TrimSpace(req.Reason) == "" || !plainText(req.Reason, maxReason) {
			return badField("reason", "is needed: one line of at most 500 characters")
		}
		taskID, err := taskOf(r)
		if err != nil {
			return err
		}
		task, err := decide(r.Context(), taskID, req.Reason, by)
		if err != nil {
			return a.notNow(r.Context(), taskID, err)
		}
		return edge.JSON(w, http.StatusOK, task)
	}
}

// notNow says what is allowed where the task's status does not allow the
// decision. Other errors pass.
func (a *API) notNow(ctx context.Context, taskID string, err error) error {
	e, ok := errors.AsType[*schema.Error](err)
	if !ok || e.Kind != schema.KindTaskStatus {
		return err
	}
	nodeTask, lookup := a.cfg.Store.Task(ctx, taskID)
	if lookup != nil {
		return err // it says enough
	}
	told := *e
	told.Message += "; allowed now: " + allowedFor(nodeTask)
	if told.Next == "" && nodeTask.Status == task.Lost {
		told.Next = "gpuaas task resume " + taskID + " --reason TEXT"
	}
	return &told
}

// allowedFor lists the decisions that a task's status allows.
func allowedFor(t wire.TaskView) string {
	switch {
	case t.Status == task.Lost:
		return "resume, cancel"
	case t.Status.Terminal():
		return "none, it is over"
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
