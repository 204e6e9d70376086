package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// heartbeatTimeout bounds the delay that an activity heartbeat adds to a
// progress call.
const heartbeatTimeout = 2 * time.Second

// maxDigits bounds the exponent and the length of a number in a task's output; the
// exponents of a float64 are at most 324.
const maxDigits = 400

// ReceivedResult is a task result with the node's signature of it.
type ReceivedResult struct {
	task.Result
	Proof *trust.ResultProof
}

// ProgressResult is the outcome of a progress call.
type ProgressResult struct {
	Response wire.ProgressResponse
	// Owner is set if a heartbeat of the activity is due.
	Owner *task.Owner
}

// TaskHeartbeat is the progress of a task as its activity's heartbeat details.
type TaskHeartbeat struct {
	Status  task.Status `json:"status"`
	Message string      `json:"message,omitempty"`
	Epoch   int64       `json:"lease_epoch"`
}

// ActivityState is the state of the activity that waits for a task.
type ActivityState struct {
	// Cancel is true if the activity was canceled or its run is closed.
	Cancel bool
	// Paused is true if an operator paused the activity in Temporal.
	Paused bool
}

// result stores a task's result. It depends only on the database.
func (a *API) result(w http.ResponseWriter, r *http.Request) error {
	c, taskID, err := a.callerAndTask(r)
	if err != nil {
		return err
	}
	var received ReceivedResult
	raw, err := edge.DecodeRaw(r, &received.Result)
	if err != nil {
		return err
	}
	if err := checkResult(&received.Result); err != nil {
		return err
	}
	if received.Proof, err = a.verifyResult(r, taskID, raw); err != nil {
		return err
	}
	if err := a.withholdResult(&received); err != nil {
		return err
	}
	correct(&received.Result)
	stored, err := a.cfg.Tasks.Result(r.Context(), c, taskID, received)
	if err != nil {
		return err
	}
	if stored != "" {
		a.cfg.Metrics.TaskEnded(stored, received.Status)
		traceTask(r.Context(), stored, taskID, received.Result)
	}
	edge.Annotate(r.Context(), slog.String("task_status", string(received.Status)))
	return edge.NoContent(w)
}

// progress extends the task's lease.
func (a *API) progress(w http.ResponseWriter, r *http.Request) error {
	c, taskID, err := a.callerAndTask(r)
	if err != nil {
		return err
	}
	var body task.Progress
	if err := edge.Decode(r, &body); err != nil {
		return err
	}
	body.Message = text.Line(a.cfg.Secrets.Withhold(body.Message), wire.MaxMessage)
	p, err := a.cfg.Tasks.Progress(r.Context(), c, taskID, body, task.LeaseDuration)
	if err != nil {
		return err
	}
	if p.Owner != nil {
		a.heartbeatActivity(r.Context(), taskID, body, &p)
	}
	return edge.JSON(w, http.StatusOK, p.Response)
}

// heartbeatActivity forwards the progress to the activity that waits for the
// task and adds the activity's state to the response. A failure does not fail
// the progress call: a later one heartbeats again.
func (a *API) heartbeatActivity(ctx context.Context, taskID string, body task.Progress, p *ProgressResult) {
	short, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	state, err := a.cfg.Heartbeater.RecordHeartbeat(short, *p.Owner,
		TaskHeartbeat{Status: task.Running, Message: body.Message, Epoch: body.LeaseEpoch})
	if err != nil {
		edge.Annotate(ctx, slog.String("heartbeat_error", err.Error()))
		return
	}
	if state == (ActivityState{Cancel: p.Response.Cancel, Paused: p.Response.Paused}) {
		return
	}
	if err := a.cfg.Tasks.SetActivityState(ctx, taskID, state); err != nil {
		edge.Annotate(ctx, slog.String("activity_state_error", err.Error()))
	}
	// An operator's cancellation of the task holds whatever the activity's state.
	p.Response.Cancel, p.Response.Paused = p.Response.Cancel || state.Cancel, state.Paused
}

func (a *API) callerAndTask(r *http.Request) (Caller, string, error) {
	c, err := a.authenticate(r)
	if err != nil {
		return Caller{}, "", err
	}
	taskID := r.PathValue("task_id")
	if !schema.IsID(taskID) {
		return Caller{}, "", schema.NewError(schema.KindNotFound, "no such task")
	}
	edge.Annotate(r.Context(), slog.String("task_id", taskID))
	return c, taskID, nil
}

// checkResult validates a result and re-encodes its output.
func checkResult(r *task.Result) error {
	switch r.Status {
	case task.Succeeded, task.Failed, task.Canceled:
	default:
		return invalidRequest("bad_status", "status must be \"succeeded\", \"failed\" or \"cancelled\"")
	}
	if len(r.OutputTail) > task.MaxOutputTail {
		return invalidRequest("bad_output_tail", "output_tail has more than %d bytes", task.MaxOutputTail)
	}
	// Empty if the agent rejected the task before it read a body.
	if r.EnvelopeSHA256 != "" && !text.IsSHA256Hex(r.EnvelopeSHA256) {
		return invalidRequest("bad_envelope_sha256", "envelope_sha256 must be 64 lower-case hex digits")
	}
	return encodeOutput(r)
}

// correct bounds what a node reports of a failure: the code becomes one that nodes may
// report, the message one short line. A bad code or message is no reason to reject the
// result: the task has ended, and its operation waits.
func correct(r *task.Result) {
	r.Message = text.Line(r.Message, wire.MaxMessage)
	if r.Code != "" || r.Status == task.Failed {
		r.Code = task.ReportedCode(r.Code)
	}
}

// encodeOutput re-encodes the output, so that the database can store every string
// in it, and bounds it in the length that Temporal receives: an escaped character is
// up to six times as long.
func encodeOutput(r *task.Result) error {
	if len(r.Output) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(r.Output))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return invalidRequest("bad_output", "output is not JSON")
	}
	if err := checkNumbers(r.Output); err != nil {
		return err
	}
	out, err := json.Marshal(v)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the output")
	}
	if len(out) > wire.MaxOutput {
		return invalidRequest("bad_output", "output has more than %d bytes, with <, > and & escaped", wire.MaxOutput)
	}
	r.Output = out
	return nil
}

// checkNumbers refuses numbers that jsonb cannot store, or writes with thousands of
// digits. It allows every number that a float64 or an int64 can hold.
func checkNumbers(raw json.RawMessage) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	for {
		t, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // the end: the caller decoded it before
		}
		n, ok := t.(json.Number)
		if !ok {
			continue
		}
		exponent := 0
		if at := strings.IndexAny(n.String(), "eE"); at >= 0 {
			exponent, err = strconv.Atoi(n.String()[at+1:])
		}
		if err != nil || len(n) > maxDigits || max(exponent, -exponent) > maxDigits {
			return invalidRequest("bad_output", "output has a number of more than %d digits", maxDigits)
		}
	}
}
