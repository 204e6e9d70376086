package nodeapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// beatBudget bounds what a heartbeat may add to a progress call.
const beatBudget = 2 * time.Second

// result stores what a task came to. The answer depends on the database only.
func (a *API) result(w http.ResponseWriter, r *http.Request) error {
	c, taskID, err := a.callerAndTask(r)
	if err != nil {
		return err
	}
	var body task.Result
	raw, err := edge.DecodeRaw(w, r, &body)
	if err != nil {
		return err
	}
	if err := checkResult(&body); err != nil {
		return err
	}
	if body.Proof, err = a.resultProof(r, taskID, raw); err != nil {
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
	var body task.Progress
	if err := edge.Decode(w, r, &body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	p, err := a.cfg.Store.Progress(ctx, c, taskID, body, task.LeaseDuration)
	if err != nil {
		return err
	}
	if p.Owner != nil {
		a.beat(ctx, taskID, body, &p)
	}
	return edge.JSON(w, http.StatusOK, p.Response)
}

// beat makes the progress a heartbeat of the activity that waits for the task,
// and lets its answer into ours. Temporal being away is no reason to stop work:
// whatever fails here is tried again with a later progress.
func (a *API) beat(ctx context.Context, taskID string, body task.Progress, p *ProgressResult) {
	brief, cancel := context.WithTimeout(ctx, beatBudget)
	defer cancel()
	b, err := a.cfg.Heartbeater.RecordHeartbeat(brief, *p.Owner, TaskHeartbeat{Status: task.Running, Message: body.Message, Epoch: body.LeaseEpoch})
	if err != nil {
		edge.Annotate(ctx, slog.String("no_heartbeat", err.Error()))
		return
	}
	if b == (ActivityState{Cancel: p.Response.Cancel, Paused: p.Response.Paused}) {
		return
	}
	if err := a.cfg.Store.SetActivityState(ctx, taskID, b); err != nil {
		edge.Annotate(ctx, slog.String("not_noted", err.Error()))
	}
	// An operator's own cancel stands whatever the activity says.
	p.Response.Cancel, p.Response.Paused = p.Response.Cancel || b.Cancel, b.Paused
}

// heartbeat stores what the agent says about itself and its work. The store
// checks the node's row, for many heartbeats together.
func (a *API) heartbeat(w http.ResponseWriter, r *http.Request) error {
	p, err := a.identify(r)
	if err != nil {
		return err
	}
	var body wire.HeartbeatRequest
	if err := edge.Decode(w, r, &body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	if err := a.cfg.Store.Heartbeat(ctx, p.id, p.facts, body); err != nil {
		return a.refused(r, err)
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

// isDigest takes a hex SHA-256, or none: an agent that refused a task unread has
// no body to name.
func isDigest(s string) bool {
	raw, err := hex.DecodeString(s)
	return s == "" || err == nil && len(raw) == sha256.Size && strings.ToLower(s) == s
}

// checkResult refuses a result that says nothing, and rewrites its output so
// that every string in it is one the database keeps.
func checkResult(r *task.Result) error {
	switch r.Status {
	case task.Succeeded, task.Failed, task.Canceled:
	default:
		return schema.NewError(schema.KindInvalidRequest, "status must be succeeded, failed or cancelled").WithReason("bad_status")
	}
	if len(r.OutputTail) > task.MaxOutputTail {
		return schema.NewError(schema.KindInvalidRequest, "output_tail is longer than %d bytes", task.MaxOutputTail).WithReason("bad_output_tail")
	}
	if !isDigest(r.EnvelopeSHA256) {
		return schema.NewError(schema.KindInvalidRequest, "envelope_sha256 must be 64 hex digits in lower case").WithReason("bad_envelope_sha256")
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
