package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

// result stores what a task came to. The answer depends on the database only.
func (a *API) result(w http.ResponseWriter, r *http.Request) error {
	c, taskID, err := a.callerAndTask(r)
	if err != nil {
		return err
	}
	var body schema.TaskResult
	if err := edge.Decode(w, r, &body); err != nil {
		return err
	}
	if err := checkResult(&body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	taskType, err := a.cfg.Store.Result(ctx, c, taskID, body)
	if err != nil {
		return err
	}
	if taskType != "" {
		a.cfg.Metrics.TaskEnded(taskType, body.Status)
	}
	edge.Annotate(r.Context(), slog.String("task_status", string(body.Status)))
	return edge.NoContent(w)
}

// progress extends the task's lease.
func (a *API) progress(w http.ResponseWriter, r *http.Request) error {
	c, taskID, err := a.callerAndTask(r)
	if err != nil {
		return err
	}
	var body schema.TaskProgress
	if err := edge.Decode(w, r, &body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	answer, err := a.cfg.Store.Progress(ctx, c, taskID, body, schema.TaskLease)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer.Answer)
}

// heartbeat stores what the agent says about itself and its work.
func (a *API) heartbeat(w http.ResponseWriter, r *http.Request) error {
	c, err := a.authenticate(r)
	if err != nil {
		return err
	}
	var body schema.HeartbeatRequest
	if err := edge.Decode(w, r, &body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	if err := a.cfg.Store.Heartbeat(ctx, c, body); err != nil {
		return err
	}
	return edge.NoContent(w)
}

func (a *API) callerAndTask(r *http.Request) (Caller, string, error) {
	c, err := a.authenticate(r)
	if err != nil {
		return Caller{}, "", err
	}
	taskID := r.PathValue("task_id")
	if !schema.IsID(taskID) {
		return Caller{}, "", schema.Errorf(schema.KindNotFound, "no such task")
	}
	edge.Annotate(r.Context(), slog.String("task_id", taskID))
	return c, taskID, nil
}

// checkResult refuses a result that says nothing, and rewrites its output so
// that every string in it is one the database keeps.
func checkResult(r *schema.TaskResult) error {
	switch r.Status {
	case schema.TaskSucceeded, schema.TaskFailed, schema.TaskCancelled:
	default:
		return schema.NewError(schema.KindInvalidRequest, "status must be succeeded, failed or cancelled").WithReason("bad_status")
	}
	if len(r.Output) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(r.Output))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return schema.NewError(schema.KindInvalidRequest, "output is not JSON").WithReason("bad_output")
	}
	out, err := json.Marshal(v)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the output again")
	}
	r.Output = out
	return nil
}
